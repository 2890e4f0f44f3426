#include <levin/core/profilers/pytorch_profiler.h>

#include <levin/core/base/seed.h>
#include <levin/core/nn/named_units.h>

#include "support.h"

#include <tests/support/run_program.h>

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>

namespace levin {
namespace {

using testing::CapturedLog;
using ::testing::Each;
using testing::files_with;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::quiet;
using testing::read_text;
using ::testing::SizeIs;
using testing::tiny_loader;
using testing::TinyModule;
using testing::UnitModule;

/// The chain of ranges around each call of an operator in a trace, as read_trace.py prints it.
std::vector<std::string> chains(const std::string& trace, const std::string& name) {
  const auto read = testing::run_program({testing::python(), testing::script("read_trace.py"), trace, name});
  EXPECT_EQ(read.status, 0) << read.err;
  std::vector<std::string> lines;
  std::istringstream out(read.out);
  for (std::string line; std::getline(out, line);) lines.push_back(line);
  return lines;
}

class PyTorchProfilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.default_root_dir = testing::fresh_folder("pytorch_profiler");
    traces_ = testing::fresh_folder("traces");
  }

  std::shared_ptr<Profiler> profiler(ProfilerSchedule schedule, PyTorchProfilerOptions options = {}) {
    options.schedule = schedule;
    options.dirpath = traces_;
    return make<PyTorchProfiler>(options);
  }
  std::vector<std::string> traces() const { return files_with(traces_, ".pt.trace.json"); }

  TrainerOptions options_ = quiet(1);
  std::string traces_;
};

TEST_F(PyTorchProfilerTest, OperatorsLieInTheirUnitPhaseAndStep) {
  if (testing::python().empty()) GTEST_SKIP() << "no Python; set LEVIN_PYTHON to one";
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 1, .warmup = 1, .active = 2}, {.record_shapes = true, .with_flops = true});
  Trainer(options_).fit(make<UnitModule>({}), tiny_loader(64), {tiny_loader(16)});
  ASSERT_THAT(traces(), SizeIs(1));
  const auto found = chains(traces().front(), "aten::tanh");
  ASSERT_THAT(found, SizeIs(4));  // two steps, two blocks
  EXPECT_EQ(found.at(0),
            "ProfilerStep#2 > train_batch > strategy.forward_backward > training_step > [Unit]block0 (Block) > "
            "[Unit]block0.inner (Inner) > [[8, 4]]");
  EXPECT_THAT(found.at(3), HasSubstr("ProfilerStep#3 > "));
  EXPECT_THAT(found.at(3), HasSubstr("[Unit]block1.inner (Inner)"));
  EXPECT_THAT(chains(traces().front(), "aten::tanh_backward").at(0), HasSubstr("> backward >"));
  EXPECT_THAT(read_text(traces().front()), HasSubstr("\"enumerate(DataLoader)#fetch_train_batch.__next__\""));
  // The table, whole in a file and in part on the console.
  const auto tables = files_with(traces_, ".operators.txt");
  ASSERT_THAT(tables, SizeIs(1));
  const std::string table = read_text(tables.front());
  EXPECT_THAT(table, HasSubstr("operators of fit, rank 0, steps 2 to 3"));
  EXPECT_THAT(table, ::testing::ContainsRegex("aten::tanh +4 "));
  EXPECT_THAT(table, HasSubstr("GFLOP"));
  EXPECT_THAT(messages.text(), HasSubstr("aten::"));
  EXPECT_THAT(messages.text(), HasSubstr(traces().front()));
}

TEST_F(PyTorchProfilerTest, AWindowForEachCycle) {
  const CapturedLog messages;
  options_.profiler = profiler({.skip_first = 1, .wait = 1, .warmup = 0, .active = 2, .repeat = 2});
  options_.max_epochs = 4;  // windows go over the end of an epoch
  auto module = make<UnitModule>({});
  Trainer(options_).fit(module, tiny_loader(24));
  EXPECT_THAT(traces(), SizeIs(2));
  EXPECT_THAT(messages.text(), HasSubstr("steps 2 to 3"));
  EXPECT_THAT(messages.text(), HasSubstr("steps 5 to 6"));
  for (const NamedUnit& named : named_units(*module)) EXPECT_TRUE(named.unit->hooks().empty());
  if (testing::python().empty()) return;
  for (const auto& trace : traces()) EXPECT_THAT(chains(trace, "aten::tanh"), SizeIs(4));
}

TEST_F(PyTorchProfilerTest, WindowsWithoutAPauseAndAnUnfinishedOne) {
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 0, .warmup = 0, .active = 2, .repeat = 0});
  Trainer(options_).fit(make<UnitModule>({}), tiny_loader(40));
  EXPECT_THAT(traces(), SizeIs(3));  // steps 0 and 1, 2 and 3, 4
  EXPECT_THAT(messages.text(), HasSubstr("steps 4 to 4"));
}

TEST_F(PyTorchProfilerTest, ARunThatEndsBeforeTheWindowSaysSo) {
  for (const int64_t wait : {30, 0}) {
    const CapturedLog messages;
    options_.profiler = profiler({.wait = wait, .warmup = 30});
    Trainer(options_).fit(make<TinyModule>({}), tiny_loader(16));
    EXPECT_THAT(traces(), SizeIs(0));
    EXPECT_THAT(messages.text(), HasSubstr("profiler pytorch recorded nothing"));
  }
  // What was prepared is undone: another run records.
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 0, .warmup = 1, .active = 1});
  Trainer(options_).fit(make<TinyModule>({}), tiny_loader(32));
  EXPECT_THAT(traces(), SizeIs(1));
}

TEST_F(PyTorchProfilerTest, OtherCalls) {
  const CapturedLog messages;
  options_.profiler = Spec<Profiler>(Config::parse("{pytorch: {schedule: {wait: 0, warmup: 1, active: 1}}}", {}));
  auto module = make<TinyModule>({});
  Trainer trainer(options_);
  trainer.validate(module, DataLoaders{tiny_loader(32)});
  trainer.test(module, tiny_loader(32));
  trainer.predict(module, DataLoaders{tiny_loader(32)});
  for (const char* stage : {"validate", "test", "predict"})
    EXPECT_THAT(messages.text(), HasSubstr("operators of " + std::string(stage) + ", rank 0, steps 1 to 1"));
  // The default place: a folder of the run's. Nothing was overwritten.
  EXPECT_THAT(files_with(trainer.run_directory() + "/profiler", ".pt.trace.json"), SizeIs(3));
}

TEST_F(PyTorchProfilerTest, AFolderOfItsOwnIsForFastDevRunsToo) {
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 0, .warmup = 0, .active = 1});
  options_.fast_dev_run = true;
  Trainer(options_).fit(make<TinyModule>({}), tiny_loader(16));
  EXPECT_THAT(traces(), SizeIs(1));
  EXPECT_TRUE(std::filesystem::is_empty(options_.default_root_dir));
}

TEST_F(PyTorchProfilerTest, OfTheEpochATraceHasTheBeginning) {
  if (testing::python().empty()) GTEST_SKIP() << "no Python; set LEVIN_PYTHON to one";
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 0, .warmup = 0, .active = 4});
  options_.max_epochs = 2;
  Trainer(options_).fit(make<TinyModule>({}), tiny_loader(16));  // two steps an epoch
  ASSERT_THAT(traces(), SizeIs(1));
  EXPECT_THAT(chains(traces().front(), "fit"), SizeIs(0));
  const auto epochs = chains(traces().front(), "train_epoch");
  ASSERT_THAT(epochs, SizeIs(1)) << "the second; the first began before";
  EXPECT_THAT(epochs.front(), HasSubstr("ProfilerStep#1"));
}

TEST_F(PyTorchProfilerTest, OfThreadRanksTheFirstRecords) {
  if (testing::python().empty()) GTEST_SKIP() << "no Python; set LEVIN_PYTHON to one";
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 0, .warmup = 1, .active = 2});
  options_.strategy = "ddp_threads";
  options_.devices = 2;
  Trainer(options_).fit(make<UnitModule>({}), tiny_loader(64));
  ASSERT_THAT(traces(), SizeIs(1));
  const auto found = chains(traces().front(), "aten::tanh");
  EXPECT_THAT(found, SizeIs(4));
  EXPECT_THAT(found, Each(HasSubstr("training_step > [Unit]block")));
  EXPECT_THAT(messages.text(), HasSubstr("of ranks that are threads the first one records"));
}

TEST_F(PyTorchProfilerTest, EachProcessRecords) {
  options_.profiler = profiler({.wait = 0, .warmup = 1, .active = 2});
  options_.strategy = "ddp_spawn";
  options_.devices = 2;
  Trainer(options_).fit(make<UnitModule>({}), tiny_loader(64));
  EXPECT_THAT(traces(), SizeIs(2));
  const auto tables = files_with(traces_, ".operators.txt");
  ASSERT_THAT(tables, SizeIs(2));
  EXPECT_THAT(read_text(tables.at(0)) + read_text(tables.at(1)),
              ::testing::AllOf(HasSubstr("rank 0, steps 1 to 2"), HasSubstr("rank 1, steps 1 to 2")));
}

TEST_F(PyTorchProfilerTest, ReplicasAreInTheTrace) {
  if (testing::python().empty()) GTEST_SKIP() << "no Python; set LEVIN_PYTHON to one";
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 0, .warmup = 1, .active = 2});
  options_.strategy = "dp";
  options_.devices = 2;
  Trainer(options_).fit(make<UnitModule>({}), tiny_loader(64));
  ASSERT_THAT(traces(), SizeIs(1));
  const auto found = chains(traces().front(), "aten::tanh");
  EXPECT_THAT(found, SizeIs(8));  // two steps, two replicas, two blocks
  EXPECT_THAT(found, Each(HasSubstr(".inner (Inner)")));
}

TEST_F(PyTorchProfilerTest, ASecondProfilerOfTheProcessGivesWay) {
  /// Runs a trainer of its own in a step of the first one.
  class Nesting : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      if (batch_idx == 1) Trainer(*inner).fit(make<TinyModule>({}), tiny_loader(32));
      return TinyModule::training_step(batch, batch_idx);
    }
    TrainerOptions* inner = nullptr;
  };
  const CapturedLog messages;
  TrainerOptions inner = options_;
  inner.profiler = profiler({.wait = 0, .warmup = 0, .active = 1});
  options_.profiler = profiler({.wait = 0, .warmup = 0, .active = 3});
  auto module = make<Nesting>({});
  module->inner = &inner;
  Trainer(options_).fit(module, tiny_loader(32));
  EXPECT_THAT(traces(), SizeIs(1));
  EXPECT_THAT(messages.text(), HasSubstr("another profiler of this process is recording"));
}

TEST_F(PyTorchProfilerTest, AnExceptionEndsTheRecording) {
  class Failing : public UnitModule {
   public:
    using UnitModule::UnitModule;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      auto output = UnitModule::training_step(batch, batch_idx);
      if (batch_idx == 2) throw std::runtime_error("out of luck");
      return output;
    }
  };
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 0, .warmup = 1, .active = 5});
  EXPECT_THROW(Trainer(options_).fit(make<Failing>({}), tiny_loader(64)), std::runtime_error);
  ASSERT_THAT(traces(), SizeIs(1));
  EXPECT_THAT(messages.text(), HasSubstr("steps 1 to 2"));
  if (testing::python().empty()) return;
  EXPECT_THAT(chains(traces().front(), "aten::tanh"), SizeIs(4));
}

TEST_F(PyTorchProfilerTest, NamesThatJsonDoesNotTake) {
  if (testing::python().empty()) GTEST_SKIP() << "no Python; set LEVIN_PYTHON to one";
  class Odd : public TinyModule {
   public:
    explicit Odd(const testing::TinyOptions& options) : TinyModule(options) {
      block_ = register_module("a \"quoted\"\\\n name ü", testing::Block());
    }
    StepOutput training_step(const Batch& batch, int64_t) override { return forward(block_(batch["x"])).sum(); }

   private:
    testing::Block block_{nullptr};
  };
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 0, .warmup = 0, .active = 1});
  Trainer(options_).fit(make<Odd>({}), tiny_loader(16));
  ASSERT_THAT(traces(), SizeIs(1));
  EXPECT_THAT(chains(traces().front(), "aten::tanh").at(0), HasSubstr("a 'quoted'/  name ? (Block)"));
}

TEST_F(PyTorchProfilerTest, AFullDiskIsAMessage) {
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 0, .warmup = 0, .active = 1, .repeat = 0});
  // The system itself refuses what Kineto writes.
  const auto former_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit former{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &former), 0);
  const rlimit small = {.rlim_cur = 8192, .rlim_max = former.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Trainer trainer(options_);
  trainer.fit(make<UnitModule>({}), tiny_loader(24));
  setrlimit(RLIMIT_FSIZE, &former);
  std::signal(SIGXFSZ, former_handler);
  EXPECT_EQ(trainer.status(), TrainerStatus::kFinished);
  EXPECT_EQ(trainer.global_step(), 3);
  // No half of a file either.
  EXPECT_THAT(files_with(traces_, ""), SizeIs(0)) << ::testing::PrintToString(files_with(traces_, ""));
  EXPECT_THAT(messages.text(), HasSubstr("the trace was not written: [files] cannot write"));
  EXPECT_THAT(messages.text(), HasSubstr("is the disk full?"));
  EXPECT_THAT(messages.text(), HasSubstr("aten::"));  // the table is there
}

TEST_F(PyTorchProfilerTest, AFolderThatCannotBeMadeIsAMessage) {
  const CapturedLog messages;
  const std::string file = traces_ + "/file";
  std::ofstream(file) << "in the way";
  traces_ = file;
  options_.profiler = profiler({.wait = 0, .warmup = 0, .active = 1});
  Trainer trainer(options_);
  trainer.fit(make<TinyModule>({}), tiny_loader(16));
  EXPECT_EQ(trainer.global_step(), 2);
  EXPECT_THAT(messages.text(), HasSubstr("the trace was not written"));
  EXPECT_EQ(read_text(file), "in the way");
}

/// In place of what LibTorch's profiler does on GPUs, while it lives: a device that has failed.
class FailedDevice final : public torch::profiler::impl::ProfilerStubs {
 public:
  FailedDevice() { torch::profiler::impl::registerCUDAMethods(this); }
  ~FailedDevice() override { torch::profiler::impl::registerCUDAMethods(const_cast<ProfilerStubs*>(former_)); }

  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*, int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override { throw std::runtime_error("an illegal memory access"); }

 private:
  const ProfilerStubs* const former_ = torch::profiler::impl::cudaStubs();
};

class PyTorchProfilerGpuTest : public PyTorchProfilerTest {};

TEST_F(PyTorchProfilerGpuTest, ADeviceThatFailsDoesNotLeaveLibTorchsProfilerOn) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device can be used here";
  const FailedDevice device;
  const CapturedLog messages;
  options_.profiler = profiler({.wait = 0, .warmup = 0, .active = 1, .repeat = 0});
  Trainer(options_).fit(make<UnitModule>({}), tiny_loader(24));
  EXPECT_THAT(traces(), SizeIs(3)) << "one window after the other can be recorded";
  EXPECT_THAT(messages.text(), HasSubstr("the device failed: an illegal memory access"));
}

TEST_F(PyTorchProfilerTest, ResultsAreTheSame) {
  const auto trained = [&](const Spec<Profiler>& profiler) {
    seed_everything(3);
    auto module = make<UnitModule>({.dropout = 0.3});
    TrainerOptions options = options_;
    options.profiler = profiler;
    const CapturedLog messages;
    Trainer(options).fit(module, tiny_loader(40), {tiny_loader(16)});
    return testing::weights(*module);
  };
  EXPECT_TRUE(testing::identical(trained({}), trained(profiler({.wait = 1, .warmup = 1, .active = 2},
                                                               {.record_shapes = true, .profile_memory = true}))));
}

}  // namespace
}  // namespace levin
