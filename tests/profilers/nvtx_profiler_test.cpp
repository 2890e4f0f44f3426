#include <levin/core/profilers/nvtx_profiler.h>

#include "support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <map>
#include <stdexcept>
#include <thread>

namespace levin {
namespace {

using testing::CapturedLog;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::quiet;
using ::testing::StartsWith;
using testing::tiny_loader;
using testing::TinyModule;
using testing::UnitModule;
using torch::profiler::impl::ProfilerStubs;

/// In place of NVTX while it lives: keeps, of the thread that made it, the ranges as paths, and the marks.
class NvtxStandIn final : public ProfilerStubs {
 public:
  explicit NvtxStandIn(bool enabled = true)
      : enabled_(enabled), former_(torch::profiler::impl::cudaStubs()), thread_(std::this_thread::get_id()) {
    torch::profiler::impl::registerCUDAMethods(this);
  }
  ~NvtxStandIn() override { torch::profiler::impl::registerCUDAMethods(const_cast<ProfilerStubs*>(former_)); }

  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*, int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char* name) const override { marks.push_back(name); }
  void rangePush(const char* name) const override {
    if (std::this_thread::get_id() != thread_) return;
    open_.push_back(open_.empty() ? name : open_.back() + " > " + name);
    ranges.push_back(open_.back());
  }
  void rangePop() const override {
    if (std::this_thread::get_id() != thread_) return;
    ASSERT_FALSE(open_.empty());
    open_.pop_back();
  }
  bool enabled() const override { return enabled_; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}
  bool all_closed() const { return open_.empty(); }

  // The interface of what is stood in for is const.
  mutable std::vector<std::string> ranges;
  mutable std::vector<std::string> marks;

 private:
  const bool enabled_;
  const ProfilerStubs* former_;
  const std::thread::id thread_;
  mutable std::vector<std::string> open_;
};

TEST(NvtxProfilerTest, RangesNest) {
  const NvtxStandIn nvtx;
  const CapturedLog messages;
  TrainerOptions options = quiet(1);
  options.default_root_dir = testing::fresh_folder("nvtx");
  options.profiler = "nvtx";
  Trainer(options).fit(make<UnitModule>({}), tiny_loader(16));
  EXPECT_THAT(nvtx.ranges, Contains("fit > train_epoch > train_batch > strategy.forward_backward > training_step > "
                                    "[Unit]block1 (Block) > [Unit]block1.inner (Inner)")
                               .Times(2));
  EXPECT_EQ(nvtx.marks, (std::vector<std::string>{"step 0", "step 1"}));
  EXPECT_TRUE(nvtx.all_closed());
  EXPECT_THAT(messages.text(), HasSubstr("nsys profile --trace=cuda,nvtx,osrt"));
}

TEST(NvtxProfilerTest, OperatorsOnRequest) {
  const NvtxStandIn nvtx;
  const CapturedLog messages;
  TrainerOptions options = quiet(1);
  options.default_root_dir = testing::fresh_folder("nvtx");
  options.profiler = make<NvtxProfiler>({.operators = true});
  Trainer(options).fit(make<UnitModule>({}), tiny_loader(16));
  EXPECT_THAT(nvtx.ranges, Contains(StartsWith("fit > train_epoch > train_batch > strategy.forward_backward > "
                                               "training_step > [Unit]block0 (Block) > [Unit]block0.inner (Inner) > "
                                               "aten::tanh")));
  EXPECT_TRUE(nvtx.all_closed());
  EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
}

TEST(NvtxProfilerTest, AnExceptionClosesTheRanges) {
  class Failing : public TinyModule {
   public:
    using TinyModule::TinyModule;
    StepOutput training_step(const Batch&, int64_t) override { throw std::runtime_error("out of luck"); }
  };
  const NvtxStandIn nvtx;
  const CapturedLog messages;
  TrainerOptions options = quiet(1);
  options.default_root_dir = testing::fresh_folder("nvtx");
  options.profiler = "nvtx";
  EXPECT_THROW(Trainer(options).fit(make<Failing>({}), tiny_loader(16)), std::runtime_error);
  EXPECT_TRUE(nvtx.all_closed());
  EXPECT_FALSE(nvtx.ranges.empty());
}

TEST(NvtxProfilerTest, WithoutCudaItSaysSoAndTrainingGoesOn) {
  const NvtxStandIn absent(/*enabled=*/false);
  const CapturedLog messages;
  TrainerOptions options = quiet(1);
  options.default_root_dir = testing::fresh_folder("nvtx");
  options.profiler = "nvtx";
  Trainer trainer(options);
  trainer.fit(make<UnitModule>({}), tiny_loader(16));
  EXPECT_EQ(trainer.global_step(), 2);
  EXPECT_TRUE(absent.ranges.empty());
  EXPECT_THAT(messages.text(), HasSubstr("built without CUDA"));
}

}  // namespace
}  // namespace levin
