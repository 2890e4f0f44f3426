// Whole programs, one of whose ranks is killed by signal 9: what becomes of the others.

#include "../../support/eventually.h"
#include "../../support/self_program.h"
#include "../../support/tiny.h"
#include "../launcher_support.h"

#include <levin/callbacks/lambda_callback.h>
#include <levin/callbacks/model_checkpoint.h>
#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/core/optim/sgd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

using testing::Board;
using testing::board_of_program;
using testing::environment_with;
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::SelfProgram;
using testing::tiny_dataset;
using testing::TinyModule;

constexpr int64_t kBatchesOfEpoch = 40;
constexpr int64_t kEpochs = 3;
constexpr int64_t kEpochOfDeath = 1;
constexpr int64_t kValidated = 30;
/// Of an epoch that a stop is to end: they last for minutes from the request on.
constexpr int64_t kManyBatches = 1000;

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_victim() {
  const std::string rank = setting("LEVIN_RANK");
  // Several victims are named "2 3".
  return setting("LEVIN_TEST_VICTIM").find(rank.empty() ? "0" : rank) != std::string::npos;
}

int64_t batches_of_epoch() { return setting("LEVIN_TEST_STOP") == "1" ? kManyBatches : kBatchesOfEpoch; }

/// Its steps take some milliseconds; the victim dies where the test says.
class Mortal : public TinyModule {
 public:
  Mortal() : TinyModule({}) {}
  StepOutput training_step(const Batch& batch, int64_t index) override {
    const std::string when = setting("LEVIN_TEST_WHEN");
    const bool its_epoch = trainer().current_epoch() == kEpochOfDeath;
    if (its_epoch && is_victim()) {
      board_of_program().write_process("victim");
      if (when == "in a step" && ++steps_ == 2) raise(SIGKILL);
      if (when == "when it waits" && !killer_.joinable())
        killer_ = std::jthread([this] {
          // It waits once it takes no step any more.
          for (int64_t seen = -1; seen != begun_;) {
            seen = begun_;
            std::this_thread::sleep_for(std::chrono::milliseconds(700));
          }
          raise(SIGKILL);
        });
    }
    ++begun_;
    // Where it dies waiting for the others, they wait until rank 0 knows: a loss is borne until rank 0 comes to the
    // meeting.
    if (when == "when it waits" && its_epoch && !is_victim()) board_of_program().wait_for("noticed");
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    return TinyModule::training_step(batch, index);
  }
  StepOutput validation_step(const Batch& batch, int64_t) override {
    log("validated", at::tensor(static_cast<double>(batch.size())), {.reduce = LogReduce::kSum});
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    return OptimizerConfig{
        .optimizer = std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.02, .momentum = 0.5})};
  }

 private:
  int64_t steps_ = 0;
  std::atomic<int64_t> begun_{0};
  std::jthread killer_;
};

const SelfProgram training("parameter_server_killed_ranks", [] {
  try {
    log::set_sink([](const std::string& line) {
      std::fprintf(stderr, "%s\n", line.c_str());
      if (line.find("the others go on without it") != std::string::npos) board_of_program().write("noticed", "");
    });
    TrainerOptions options = testing::quiet(kEpochs);
    options.devices = std::stoll(setting("LEVIN_TEST_RANKS"));
    options.strategy = Spec<Strategy>(Config::parse(setting("LEVIN_TEST_STRATEGY"), {}));
    options.enable_checkpointing = true;
    options.default_root_dir = setting("LEVIN_TEST_BOARD");
    options.callbacks = {make<ModelCheckpoint>({.save_last = true, .asynchronous = true}),
                         make<LambdaCallback>({.on_train_batch_end = [](Trainer& trainer, Module&, const StepOutput&,
                                                                        const Batch&, int64_t batch_idx) {
                           if (setting("LEVIN_TEST_STOP") == "1" && trainer.current_epoch() == kEpochOfDeath &&
                               batch_idx > kBatchesOfEpoch / 2) {
                             trainer.request_stop("enough");
                             std::this_thread::sleep_for(std::chrono::milliseconds(200));
                           }
                         }})};
    Trainer trainer(options);
    const auto module = std::make_shared<Mortal>();
    const DataLoader validation(tiny_dataset(kValidated), {.batch_size = 4});
    trainer.fit(module, DataLoader(tiny_dataset(batches_of_epoch() * 4), {.batch_size = 4}), validation);
    if (trainer.is_global_zero())
      board_of_program().write("result", fmt::format("{} steps, {} ranks, {} validated, {}", trainer.global_step(),
                                                     trainer.world_size(), trainer.callback_metrics().at("validated"),
                                                     trainer.checkpoint_callback()->last_model_path()));
    // The next call goes on without it, too.
    trainer.validate(module, validation);
    if (trainer.is_global_zero()) std::puts("validated again");
    log::set_sink(nullptr);
    return 0;
  } catch (const RankFailedError& error) {
    // As run_command does it: one rank says what became of all.
    if (setting("LEVIN_RANK").empty()) std::fprintf(stderr, "%s\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
});

struct Killed {
  int64_t ranks = 3;
  std::string strategy = "mode: async";
  int64_t victim = 2;
  std::string when = "in a step";
  bool stop = false;
};

std::map<std::string, std::string> environment_of(const Killed& killed, const Folder& folder) {
  auto environment = environment_with(folder);
  environment["LEVIN_TEST_RANKS"] = std::to_string(killed.ranks);
  environment["LEVIN_TEST_STRATEGY"] = "{name: parameter_server, " + killed.strategy + "}";
  environment["LEVIN_TEST_VICTIM"] = std::to_string(killed.victim);
  environment["LEVIN_TEST_WHEN"] = killed.when;
  environment["LEVIN_TEST_STOP"] = killed.stop ? "1" : "0";
  return environment;
}

testing::ProgramResult run(const Killed& killed, const Folder& folder) {
  testing::RunningProgram program(training.words(), training.options(environment_of(killed, folder)));
  if (killed.when == "from outside") kill(Board(folder.path()).process("victim"), SIGKILL);
  return program.wait();  // its limit is far below any time-out
}

int64_t count(const std::string& text, const std::string& word) {
  int64_t times = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++times;
  return times;
}

/// The batches of an epoch that a server's log names.
std::set<int64_t> batches_in_log(const std::string& path, int64_t epoch) {
  std::set<int64_t> batches;
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::vector<int64_t> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',') && cells.size() < 5;) cells.push_back(std::stoll(cell));
    if (cells.at(3) == epoch) batches.insert(cells.at(4));
  }
  return batches;
}

void PrintTo(const Killed& killed, std::ostream* out) {
  *out << "rank " << killed.victim << " of " << killed.ranks << " " << killed.when << ", " << killed.strategy;
}

class KilledWorker : public ::testing::TestWithParam<Killed> {};

TEST_P(KilledWorker, LeavesTheOthersTraining) {
  const Folder folder;
  Killed killed = GetParam();
  killed.strategy += ", update_log: " + folder.path() + "/log";
  const auto result = run(killed, folder);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(count(result.err, "was ended by signal 9"), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr(fmt::format("warning: rank {} on ", killed.victim)));
  EXPECT_THAT(result.err, HasSubstr("the others go on without it"));
  EXPECT_THAT(result.err, Not(HasSubstr("error")));
  // It is counted out of the ranks; its share of the validation data is the others'.
  const std::string end = Board(folder.path()).read("result");
  EXPECT_THAT(end, HasSubstr(fmt::format("{} steps, {} ranks, {} validated", kEpochs * kBatchesOfEpoch,
                                         killed.ranks - 1, kValidated)));
  EXPECT_THAT(result.out, HasSubstr("validated again"));
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto batches = std::ssize(batches_in_log(folder.path() + "/log/server-0.csv", epoch));
    // What it had taken is lost: the batch of its last step, and the one that it had fetched for the next.
    if (epoch == kEpochOfDeath)
      EXPECT_GE(batches, kBatchesOfEpoch - 2);
    else
      EXPECT_EQ(batches, kBatchesOfEpoch) << epoch;
  }
  // The last checkpoint is that of the living.
  const State tree = read_checkpoint(end.substr(end.find('/')));
  EXPECT_EQ(std::ssize(tree.at("ranks").as_list()), killed.ranks - 1);
  EXPECT_EQ(tree.at("loops").at("global_step").as_int(), kEpochs * kBatchesOfEpoch);
}

INSTANTIATE_TEST_SUITE_P(
    , KilledWorker,
    ::testing::Values(Killed{}, Killed{.when = "from outside"}, Killed{.when = "when it waits"},
                      Killed{.ranks = 4, .strategy = "mode: async, servers: 2", .when = "from outside"},
                      Killed{.strategy = "mode: async, max_staleness: 1, delay_compensation: 0.5"},
                      Killed{.ranks = 2, .victim = 1}));

TEST(KilledRanks, AStopComesAsSoonWithoutTheWorkerThatWasKilled) {
  const Folder folder;
  const auto result = run({.stop = true}, folder);
  ASSERT_EQ(result.status, 0) << result.err;
  int64_t steps = 0;
  std::istringstream(Board(folder.path()).read("result")) >> steps;
  EXPECT_GT(steps, kManyBatches + kBatchesOfEpoch / 2);
  EXPECT_LT(steps, 2 * kManyBatches);
}

TEST(KilledRanks, TwoWorkersMayBeKilledAtOnce) {
  const Folder folder;
  auto environment = environment_of({.ranks = 4}, folder);
  environment["LEVIN_TEST_VICTIM"] = "1 3";
  const auto result = training.run(environment);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(count(result.err, "the others go on without it"), 2) << result.err;
  EXPECT_THAT(Board(folder.path()).read("result"),
              HasSubstr(fmt::format("{} steps, 2 ranks, {} validated", kEpochs * kBatchesOfEpoch, kValidated)));
}

TEST(KilledRanks, AServerThatIsKilledEndsAllWithItsName) {
  for (const char* when : {"in a step", "from outside"}) {
    const Folder folder;
    const auto result = run({.strategy = "mode: async, servers: 2", .victim = 1, .when = when}, folder);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("[ranks] rank 1 was ended by signal 9 (Killed)"));
    EXPECT_THAT(result.err, HasSubstr("; it was parameter server 1 of 0 to 1"));
    EXPECT_EQ(count("\n" + result.err, "\n[ranks] "), 1) << result.err;
  }
}

TEST(KilledRanks, TheProgramItselfIsAServerWhoseRanksNameItWhenItIsKilled) {
  const Folder folder;
  testing::RunningProgram program(training.words(),
                                  training.options(environment_of({.victim = 0, .when = "from outside"}, folder)));
  kill(Board(folder.path()).process("victim"), SIGKILL);
  const std::string words =
      "[levin rank 1] error: rank 0 is gone, and the ranks that it started end; it was the parameter server\n";
  EXPECT_EQ(program.wait().signal, SIGKILL);
  EXPECT_TRUE(testing::eventually([&] { return program.err().find(words) != std::string::npos; })) << program.err();
}

TEST(KilledRanks, AWorkerThatIsKilledInModeSyncEndsAll) {
  for (const int64_t ranks : {2, 3}) {
    const Folder folder;
    const auto result = run({.ranks = ranks, .strategy = "mode: sync", .victim = ranks - 1}, folder);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr(fmt::format("[ranks] rank {} was ended by signal 9 (Killed)", ranks - 1)));
    EXPECT_EQ(count("\n" + result.err, "\n[ranks] "), 1) << result.err;
  }
}

}  // namespace
}  // namespace levin
