// Whole programs whose ranks end before they have all met, at once after, or at the end: nothing waits in silence.

#include <levin/core/trainer/trainer.h>
#include <levin/strategies/ddp/ddp.h>

#include "../support/self_program.h"
#include "../support/tiny.h"
#include "launcher_support.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

namespace levin {
namespace {

using testing::Board;
using testing::board_of_program;
using testing::environment_with;
using testing::eventually;
using testing::Folder;
using testing::hang;
using testing::SelfProgram;
using testing::TinyModule;

/// Longer than a program may take: what ends before has not waited for it.
constexpr double kStartTimeout = 3600;

std::string fault() { return std::getenv("LEVIN_TEST_FAULT"); }
bool is_other_process() { return std::getenv("LEVIN_LOCAL_RANK") != nullptr; }

/// Ranks that end while they make their process group, or while they part.
class FaultyDdp : public Ddp {
 public:
  explicit FaultyDdp(const DdpOptions& options) : Ddp(options) {}

  void teardown() override {
    if (fault() == "killed in teardown" && environment().rank() == 1) {
      board_of_program().write("dies", "");
      raise(SIGKILL);
    }
    Ddp::teardown();
  }

 protected:
  c10::intrusive_ptr<c10d::ProcessGroup> make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const ProcessGroupOptions& options) override {
    if (options.rank == 1 && fault().starts_with("killed in group")) raise(SIGKILL);
    if (options.rank == 1 && fault() == "leaves in group") std::exit(0);
    return Ddp::make_group(store, options);
  }
};

/// Trains, or does what LEVIN_TEST_FAULT says.
const SelfProgram training("start_up_training", [] {
  const Board board = board_of_program();
  board.write_process(is_other_process() ? "other" : "first");
  if (is_other_process()) {
    if (fault() == "killed") raise(SIGKILL);
    if (fault() == "leaves") return 0;
    if (fault() == "fails") return 3;
    if (fault() == "hangs") hang();
  }
  try {
    TrainerOptions options = testing::quiet(1);
    options.devices = 2;
    options.strategy = std::make_shared<FaultyDdp>(
        DdpOptions{.backend = fault().ends_with("gloo") ? "gloo" : "shared_memory", .start_timeout = kStartTimeout});
    Trainer trainer(options);
    trainer.fit(make<TinyModule>(testing::TinyOptions{}), testing::tiny_loader());
    std::puts("trained");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
});

/// Runs it to its end.
testing::ProgramResult run_with_fault(const std::string& name, const Folder& folder) {
  auto environment = environment_with(folder);
  environment["LEVIN_TEST_FAULT"] = name;
  const auto result = training.run(environment);
  EXPECT_TRUE(testing::is_gone(Board(folder.path()).process("other")));
  return result;
}

struct FirstWords {
  const char* fault;
  const char* words;
};

TEST(StartUp, ARankThatEndsIsTheErrorOfAll) {
  for (const auto& [name, words] : {
           FirstWords{"killed",
                      "[ranks] rank 1 was ended by signal 9 (Killed) while joining the other ranks; hint: when"},
           FirstWords{"leaves", "[ranks] rank 1 ended with status 0 while joining the other ranks"},
           FirstWords{"fails", "[ranks] rank 1 ended with status 3 while joining the other ranks"},
           FirstWords{"killed in group, shared_memory", "[ranks] rank 1 was ended by signal 9 (Killed)"},
           FirstWords{"killed in group, gloo", "[ranks] rank 1 was ended by signal 9 (Killed)"},
           FirstWords{"leaves in group", "[ranks] rank 1 ended with status 0"},
       }) {
    SCOPED_TRACE(name);
    const Folder folder;
    const auto result = run_with_fault(name, folder);
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  }
}

TEST(StartUp, OneCtrlCEndsTheWaiting) {
  const Folder folder;
  const Board board(folder.path());
  auto environment = environment_with(folder);
  environment["LEVIN_TEST_FAULT"] = "hangs";
  testing::RunningProgram program(training.words(), training.options(environment));
  const pid_t other = board.process("other");
  program.send(SIGINT);
  const auto result = program.wait();
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("rank 0 was interrupted by signal 2 (Interrupt) while joining the other ranks"),
            std::string::npos)
      << result.err;
  EXPECT_TRUE(testing::is_gone(other));
}

TEST(StartUp, ARankEndsWithItsParentBeforeItsFirstCall) {
  const Folder folder;
  const Board board(folder.path());
  auto environment = environment_with(folder);
  environment["LEVIN_TEST_FAULT"] = "hangs";
  testing::RunningProgram program(training.words(), training.options(environment));
  const pid_t other = board.process("other");
  program.send(SIGKILL);
  program.wait();
  EXPECT_TRUE(eventually([&] { return testing::is_gone(other); }));
}

TEST(StartUp, ARankThatEndsWhileAllPartCostsTheOthersNothing) {
  // Its silence is noticed after 8 s at the soonest: one end before shows that nobody waits for that.
  bool is_sooner = false;
  for (int attempt = 0; attempt < 10 && !is_sooner; ++attempt) {
    const Folder folder;
    auto environment = environment_with(folder);
    environment["LEVIN_TEST_FAULT"] = "killed in teardown";
    testing::RunningProgram program(training.words(), training.options(environment));
    ASSERT_TRUE(Board(folder.path()).wait_for("dies"));
    const auto start = std::chrono::steady_clock::now();
    const auto result = program.wait();
    is_sooner = std::chrono::steady_clock::now() - start < std::chrono::seconds(8);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(result.out.find("trained\n"), std::string::npos) << result.out;
    EXPECT_NE(result.err.find("rank 1 was ended by signal 9 (Killed) when the last call of a trainer was done"),
              std::string::npos)
        << result.err;
  }
  EXPECT_TRUE(is_sooner);
}

// ---- Forks.

/// Rank 1 dies in its second step.
class DyingModule : public TinyModule {
 public:
  DyingModule() : TinyModule({}) {}
  StepOutput training_step(const Batch& batch, int64_t index) override {
    if (index == 1 && trainer().global_rank() == 1) {
      board_of_program().write("dies", "");
      raise(SIGKILL);
    }
    return TinyModule::training_step(batch, index);
  }
};

const SelfProgram dying_fork("start_up_dying_fork", [] {
  try {
    TrainerOptions options = testing::quiet(1);
    options.devices = 2;
    options.strategy = "ddp_spawn";
    Trainer trainer(options);
    trainer.fit(std::make_shared<DyingModule>(), testing::tiny_loader());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
});

TEST(ForkedRanks, LearnOfADeathFromTheirParentAndAreSentNoSignal) {
  const Folder folder;
  const Board board(folder.path());
  testing::RunningProgram program(dying_fork.words(), dying_fork.options(environment_with(folder)));
  ASSERT_TRUE(board.wait_for("dies"));
  const auto result = program.wait();
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("[ranks] rank 1 was ended by signal 9 (Killed)"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("ending after the present step"), std::string::npos) << result.err;
}

// ---- Ranks that hang.

/// The last rank does not come back from its second step of the loop that LEVIN_TEST_FAULT names after the way to
/// start.
class HangingModule : public TinyModule {
 public:
  explicit HangingModule(const testing::TinyOptions& options) : TinyModule(options) {}
  StepOutput training_step(const Batch& batch, int64_t index) override {
    hang_in("training_step", index);
    return TinyModule::training_step(batch, index);
  }
  StepOutput validation_step(const Batch& batch, int64_t index) override {
    hang_in(trainer().sanity_checking() ? "sanity check" : "validation_step", index);
    return TinyModule::validation_step(batch, index);
  }
  StepOutput test_step(const Batch& batch, int64_t index) override {
    hang_in("test_step", index);
    return TinyModule::test_step(batch, index);
  }
  Batch predict_step(const Batch& batch, int64_t index) override {
    hang_in("predict_step", index);
    return TinyModule::predict_step(batch, index);
  }

 private:
  void hang_in(const std::string& step, int64_t index) {
    if (index == 1 && trainer().global_rank() == trainer().world_size() - 1 && fault().ends_with("|" + step)) hang();
  }
};

const SelfProgram hanging("start_up_hanging", [] {
  try {
    TrainerOptions options = testing::quiet(1);
    options.devices = 2;
    if (fault().ends_with("|sanity check")) options.num_sanity_val_steps = 2;
    StartMethod method = StartMethod::kSubprocess;
    if (fault().starts_with("fork|")) method = StartMethod::kFork;
    if (fault().starts_with("thread|")) method = StartMethod::kThread;
    options.strategy = make<Ddp>(
        DdpOptions{.start_method = method, .hang_timeout = std::stod(std::getenv("LEVIN_TEST_HANG_TIMEOUT"))});
    Trainer trainer(options);
    const auto module = make<HangingModule>(testing::TinyOptions{});
    if (fault().ends_with("|test_step"))
      trainer.test(module, testing::tiny_loader());
    else if (fault().ends_with("|predict_step"))
      trainer.predict(module, testing::tiny_loader());
    else
      trainer.fit(module, testing::tiny_loader(), testing::tiny_loader());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
});

struct Hang {
  const char* method;
  const char* loop;   ///< as HangingModule knows it
  const char* place;  ///< as the message says it
};

class HangingRank : public ::testing::TestWithParam<Hang> {};

TEST_P(HangingRank, EndsTheJobWithThePlaceOfEachRank) {
  const auto& [method, loop, place] = GetParam();
  testing::ProgramResult result;
  // In a short time a rank that is well may seem to hang.
  EXPECT_TRUE(testing::with_time_enough([&, method = method, loop = loop, place = place](std::chrono::seconds time) {
    const Folder folder;
    auto environment = environment_with(folder);
    environment["LEVIN_TEST_FAULT"] = std::string(method) + "|" + loop;
    environment["LEVIN_TEST_HANG_TIMEOUT"] = std::to_string(time.count());
    result = hanging.run(environment);
    const auto says = [&](const std::string& words) { return result.err.find(words) != std::string::npos; };
    return result.status == 1 && says(std::string("rank 1 hangs: it has been ") + place + " for ") &&
           says("where each rank is:\n  rank 0: waits in ") && says(std::string("\n  rank 1: ") + place + " for ");
  })) << result.status
      << ": " << result.err;
}

INSTANTIATE_TEST_SUITE_P(Of, HangingRank,
                         ::testing::Values(Hang{"process", "training_step", "in training_step of batch 1"},
                                           Hang{"thread", "training_step", "in training_step of batch 1"},
                                           Hang{"process", "validation_step",
                                                "in validation_step of validation batch 1"},
                                           Hang{"fork", "validation_step", "in validation_step of validation batch 1"},
                                           Hang{"thread", "sanity check", "in validation_step of sanity check batch 1"},
                                           Hang{"fork", "test_step", "in test_step of test batch 1"},
                                           Hang{"thread", "predict_step", "in predict_step of prediction batch 1"}),
                         [](const auto& info) {
                           const std::string loop = info.param.loop;
                           return info.param.method + std::string("_") + loop.substr(0, loop.find_first_of("_ "));
                         });

/// A rank that is alone is missed by nobody else.
const SelfProgram hanging_alone("start_up_hanging_alone", [] {
  TrainerOptions options = testing::quiet(1);
  options.devices = 1;
  options.strategy = Spec<Strategy>(Config::parse(fault().substr(0, fault().find('|')), {}));
  Trainer trainer(options);
  trainer.fit(make<HangingModule>(testing::TinyOptions{}), testing::tiny_loader(), testing::tiny_loader());
  return 0;
});

class HangingAlone : public ::testing::TestWithParam<const char*> {};

TEST_P(HangingAlone, EndsWithThePlace) {
  testing::ProgramResult result;
  // In a short time a rank that is well may seem to hang.
  EXPECT_TRUE(testing::with_time_enough([&](std::chrono::seconds time) {
    const Folder folder;
    auto environment = environment_with(folder);
    environment["LEVIN_TEST_FAULT"] =
        std::string("{name: ") + GetParam() + ", hang_timeout: " + std::to_string(time.count()) + "}|training_step";
    result = hanging_alone.run(environment);
    return result.status == 1 &&
           result.err.find("[levin] error: rank 0 hangs: it has been in training_step of batch 1 for ") !=
               std::string::npos;
  })) << result.status
      << ": " << result.err;
}

INSTANTIATE_TEST_SUITE_P(Of, HangingAlone, ::testing::Values("single_device", "dp", "ddp", "ddp_threads"),
                         [](const auto& info) { return std::string(info.param); });

// ---- Threads.

TEST(ThreadRanks, MeetInTheSameControlPlaneInEveryCall) {
  TrainerOptions options = testing::quiet(-1);
  options.devices = 2;
  options.strategy = "ddp_threads";
  options.max_time = TimeLimit("00:00:00:01");
  Trainer trainer(options);
  const auto module = make<TinyModule>(testing::TinyOptions{});
  // Rank 0's clock stops both: else they would go on for ever.
  for (int call = 0; call < 2; ++call) trainer.fit(module, testing::tiny_loader());
}

}  // namespace
}  // namespace levin
