#include <levin/core/profilers/simple_profiler.h>

#include <levin/core/base/seed.h>
#include <levin/core/nn/named_units.h>

#include "support.h"

#include <tests/support/faulty_file_system.h>
#include <tests/support/run_program.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace levin {
namespace {

using testing::CapturedLog;
using testing::files_with;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::quiet;
using testing::read_text;
using testing::tiny_loader;
using testing::TinyModule;
using testing::UnitModule;

/// Takes its time in one place, which the table must show.
class SlowModule : public UnitModule {
 public:
  using UnitModule::UnitModule;
  void on_after_backward() override { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
};

class SimpleProfilerTest : public ::testing::Test {
 protected:
  void SetUp() override { options_.default_root_dir = testing::fresh_folder("simple_profiler"); }

  const SpanTime& row(const std::vector<SpanTime>& rows, const std::string& name) {
    for (const auto& row : rows)
      if (row.name == name) return row;
    ADD_FAILURE() << "no row " << name;
    static const SpanTime none;
    return none;
  }

  TrainerOptions options_ = quiet(1);
};

TEST_F(SimpleProfilerTest, ShowsWhatIsSlow) {
  const CapturedLog messages;
  const auto profiler = make<SimpleProfiler>({});
  options_.profiler = profiler;
  Trainer trainer(options_);
  trainer.fit(make<SlowModule>({}), tiny_loader(32));
  const auto rows = profiler->summary();
  const SpanTime& slow = row(rows, "on_after_backward");
  EXPECT_EQ(slow.calls, 4);
  EXPECT_GE(slow.total, std::chrono::milliseconds(80));
  // It is the module's, inside of the hook, and of the step around both.
  const SpanTime& of_module = row(rows, "[Module]SlowModule.on_after_backward");
  EXPECT_GE(of_module.total, std::chrono::milliseconds(80));
  EXPECT_EQ(slow.self, slow.total - of_module.total);
  const SpanTime& step = row(rows, "train_batch");
  EXPECT_GE(step.total, slow.total);
  EXPECT_LE(step.self, step.total - slow.total);
  EXPECT_EQ(row(rows, "fit").calls, 1);
  // Nothing is counted twice: all self times together are the whole.
  const auto all = std::accumulate(rows.begin(), rows.end(), std::chrono::nanoseconds(0),
                                   [](auto sum, const SpanTime& time) { return sum + time.self; });
  EXPECT_EQ(all, row(rows, "fit").total);
  // Units, by path and type.
  EXPECT_EQ(row(rows, "[Unit]block0 (Block)").calls, 4);
  EXPECT_EQ(row(rows, "[Unit]block1.inner (Inner)").calls, 4);
  EXPECT_GE(row(rows, "[Unit]block0 (Block)").total, row(rows, "[Unit]block0.inner (Inner)").total);
  EXPECT_GE(row(rows, "training_step").total, row(rows, "[Unit]block0 (Block)").total);

  const std::string table = read_text(trainer.run_directory() + "/profile_fit_rank0.txt");
  EXPECT_THAT(table, HasSubstr("profile of fit, rank 0"));
  EXPECT_THAT(table, HasSubstr("[Unit]block1.inner (Inner)"));
  EXPECT_THAT(table, HasSubstr("[Module]"));
  EXPECT_LT(table.find("train_batch "), table.find("training_step "));  // the longest first
  EXPECT_THAT(messages.text(), HasSubstr("on_after_backward"));
  EXPECT_THAT(messages.text(), HasSubstr("profile_fit_rank0.txt"));
}

TEST_F(SimpleProfilerTest, LeavesNothingBehindAndChangesNothing) {
  const auto trained = [&](bool profiled) {
    seed_everything(3);
    auto module = make<UnitModule>({.dropout = 0.3});
    TrainerOptions options = options_;
    if (profiled) options.profiler = "simple";
    const CapturedLog messages;
    Trainer(options).fit(module, tiny_loader(40), {tiny_loader(16)});
    for (const NamedUnit& named : named_units(*module)) EXPECT_TRUE(named.unit->hooks().empty());
    return testing::weights(*module);
  };
  EXPECT_TRUE(testing::identical(trained(false), trained(true)));
}

TEST_F(SimpleProfilerTest, EachCallHasAFileOfItsOwn) {
  const CapturedLog messages;
  options_.profiler = "simple";
  auto module = make<TinyModule>({});
  Trainer trainer(options_);
  trainer.fit(module, tiny_loader(16));
  trainer.test(module, tiny_loader(16));
  trainer.validate(module, DataLoaders{tiny_loader(16)});
  trainer.predict(module, DataLoaders{tiny_loader(16)});
  const std::string first = read_text(trainer.run_directory() + "/profile_test_rank0.txt");
  trainer.test(module, tiny_loader(24));
  std::vector<std::string> names;
  for (const auto& path : files_with(trainer.run_directory(), ".txt"))
    names.push_back(path.substr(path.rfind('/') + 1));
  EXPECT_THAT(names,
              ::testing::ElementsAre("profile_fit_rank0.txt", "profile_predict_rank0.txt", "profile_test_rank0.txt",
                                     "profile_test_rank0_2.txt", "profile_validate_rank0.txt"));
  EXPECT_EQ(read_text(trainer.run_directory() + "/profile_test_rank0.txt"), first);
  EXPECT_THAT(first, HasSubstr("test_step "));
}

TEST_F(SimpleProfilerTest, OneForEachRank) {
  const CapturedLog messages;
  options_.profiler = "simple";
  options_.strategy = "ddp_threads";
  options_.devices = 2;
  Trainer trainer(options_);
  trainer.fit(make<UnitModule>({}), tiny_loader(32));
  for (const char* rank : {"0", "1"}) {
    const std::string table = read_text(trainer.run_directory() + "/profile_fit_rank" + rank + ".txt");
    EXPECT_THAT(table, HasSubstr(std::string("rank ") + rank));
    EXPECT_THAT(table, HasSubstr("[Unit]block0 (Block)"));
  }
  EXPECT_THAT(messages.text(), Not(HasSubstr("profile of fit, rank 1")));
}

TEST_F(SimpleProfilerTest, ReplicasAreCounted) {
  const CapturedLog messages;
  const auto profiler = make<SimpleProfiler>({});
  options_.profiler = profiler;
  options_.strategy = "dp";
  options_.devices = 2;
  Trainer(options_).fit(make<UnitModule>({}), tiny_loader(32));
  EXPECT_EQ(row(profiler->summary(), "[Unit]block0 (Block)").calls, 8);  // 4 steps, 2 replicas
}

TEST_F(SimpleProfilerTest, AFailedRunHasItsTable) {
  class Failing : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput training_step(const Batch&, int64_t) override { throw std::runtime_error("out of luck"); }
  };
  const CapturedLog messages;
  options_.profiler = "simple";
  Trainer trainer(options_);
  EXPECT_THROW(trainer.fit(make<Failing>({}), tiny_loader(16)), std::runtime_error);
  EXPECT_THAT(read_text(trainer.run_directory() + "/profile_fit_rank0.txt"), HasSubstr("training_step"));
}

TEST_F(SimpleProfilerTest, AResumedRun) {
  const CapturedLog messages;
  options_.profiler = "simple";
  options_.enable_checkpointing = true;
  Trainer first(options_);
  first.fit(make<TinyModule>({}), tiny_loader(16));
  options_.max_epochs = 2;
  Trainer second(options_);
  second.fit(make<TinyModule>({}), tiny_loader(16), {}, "last");
  EXPECT_EQ(second.global_step(), 4);
  const std::string table = read_text(second.run_directory() + "/profile_fit_rank0.txt");
  EXPECT_THAT(table, ::testing::ContainsRegex("training_step +2 "));
  EXPECT_THAT(table, HasSubstr("restore_optimization"));
}

TEST_F(SimpleProfilerTest, AFullDiskIsAMessage) {
  const CapturedLog messages;
  options_.profiler = "simple";
  Trainer trainer(options_);
  auto module = make<TinyModule>({});
  trainer.validate(module, DataLoaders{tiny_loader(16)});
  testing::FaultyFileSystem files;
  files.fail_after_bytes(10);
  trainer.test(module, tiny_loader(16));
  EXPECT_EQ(trainer.status(), TrainerStatus::kFinished);
  EXPECT_THAT(messages.text(), HasSubstr("the profile was not written"));
  EXPECT_THAT(messages.text(), HasSubstr("profile of test, rank 0"));
}

TEST_F(SimpleProfilerTest, WithoutARunFolderTheConsoleHasIt) {
  const CapturedLog messages;
  options_.profiler = "simple";
  options_.fast_dev_run = true;
  Trainer(options_).fit(make<TinyModule>({}), tiny_loader(16));
  EXPECT_THAT(messages.text(), HasSubstr("profile of fit, rank 0"));
  EXPECT_TRUE(std::filesystem::is_empty(options_.default_root_dir));
}

}  // namespace
}  // namespace levin
