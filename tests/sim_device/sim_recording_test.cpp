#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/sim_device.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace levin::testing {
namespace {

using sim::device;
using ::testing::HasSubstr;

class SimRecording : public ::testing::Test {
 protected:
  sim::RecordedWork record(const std::function<void()>& body) const {
    const c10::StreamGuard guard(stream_);
    sim::Recording recording(stream_);
    body();
    return recording.end();
  }
  /// The error that a recording of `body` ends with.
  std::string error_of(const std::function<void()>& body) const {
    try {
      record(body);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }
  void replay(const sim::RecordedWork& work) const {
    const c10::StreamGuard guard(stream_);
    for (const auto& kernel : work) kernel();
  }

  const c10::impl::VirtualGuardImpl backend_{at::kPrivateUse1};
  const c10::Stream stream_ = backend_.getStreamFromGlobalPool(device(0));
};

TEST_F(SimRecording, LeavesTheDeviceAsItWasAndCanBeReplayed) {
  at::Tensor x = at::ones({4}, device(0));
  backend_.synchronizeDevice(0);
  const sim::RecordedWork work = record([&] { x.add_(1).mul_(2); });
  EXPECT_TRUE(x.cpu().equal(at::ones({4})));
  replay(work);
  replay(work);
  stream_.synchronize();
  EXPECT_TRUE(x.cpu().equal(at::full({4}, 10.0F)));
}

TEST_F(SimRecording, ResultsKeepTheirAddresses) {
  const at::Tensor x = at::full({3}, 2.0F, device(0));
  at::Tensor gradient, result;
  backend_.synchronizeDevice(0);
  const sim::RecordedWork work = record([&] {
    const at::Tensor leaf = x.detach().set_requires_grad(true);
    result = at::conv1d(leaf.view({1, 1, 3}), at::ones({1, 1, 1}, device(0))).square();
    result.sum().backward();
    gradient = leaf.grad();
  });
  x.fill_(5);
  backend_.synchronizeDevice(0);
  replay(work);
  stream_.synchronize();
  EXPECT_EQ(result.detach().cpu()[0][0][1].item<float>(), 25);
  EXPECT_TRUE(gradient.cpu().equal(at::full({3}, 10.0F)));
}

TEST_F(SimRecording, EachReplayDrawsFreshNumbers) {
  at::Generator(at::globalContext().defaultGenerator(device(0))).set_current_seed(3);
  at::Tensor x = at::zeros({50}, device(0));
  backend_.synchronizeDevice(0);
  const sim::RecordedWork work = record([&] { x.uniform_(); });
  replay(work);
  stream_.synchronize();
  const at::Tensor first = x.cpu();
  replay(work);
  stream_.synchronize();
  EXPECT_FALSE(x.cpu().equal(first));
  at::Generator(at::globalContext().defaultGenerator(device(0))).set_current_seed(3);
  EXPECT_TRUE(at::empty({50}, device(0)).uniform_().cpu().equal(first));
}

TEST_F(SimRecording, RefusesEveryWait) {
  const at::Tensor x = at::ones({4}, device(0));
  const at::Tensor pinned = at::ones({4}).pin_memory();
  backend_.synchronizeDevice(0);
  EXPECT_THAT(error_of([&] { (void)x.sum().item<float>(); }), HasSubstr("value read (item)"));
  EXPECT_THAT(error_of([&] { (void)x.cpu(); }), HasSubstr("copy to the host"));
  EXPECT_THAT(error_of([&] { (void)x.nonzero(); }), HasSubstr("shape that depends on data"));
  EXPECT_THAT(error_of([&] { (void)at::ones({4}).to(device(0)); }), HasSubstr("copy from the host"));
  EXPECT_THAT(error_of([&] { backend_.synchronizeDevice(0); }), HasSubstr("device synchronised"));
  EXPECT_THAT(error_of([&] { backend_.synchronizeDevice(1); }), HasSubstr("device synchronised"));
  EXPECT_EQ(error_of([&] { (void)pinned.to(device(0), /*non_blocking=*/true); }), "");
}

TEST_F(SimRecording, IsInvalidWhenTheRefusalWasCaught) {
  const at::Tensor x = at::ones({4}, device(0));
  backend_.synchronizeDevice(0);
  EXPECT_THAT(error_of([&] {
                try {
                  (void)x.sum().item<float>();
                } catch (const c10::Error&) {
                }
              }),
              HasSubstr("recording is invalid"));
  // The next one starts afresh.
  EXPECT_EQ(error_of([&] { x.add(1); }), "");
}

TEST_F(SimRecording, RefusesToWaitForWorkThatIsNotRecorded) {
  const c10::Stream other = backend_.getStreamFromGlobalPool(device(0));
  c10::Event event(at::kPrivateUse1);
  event.record(other);
  EXPECT_THAT(error_of([&] { event.block(stream_); }), HasSubstr("an event that is not part of the recording"));
  EXPECT_THAT(error_of([&] {
                c10::Event forked(at::kPrivateUse1), joined(at::kPrivateUse1);
                forked.record(stream_);
                forked.block(other);
                joined.record(other);
                joined.block(stream_);
              }),
              "");
}

TEST_F(SimRecording, TheDefaultStreamCannotBeRecorded) {
  EXPECT_THROW(sim::Recording(backend_.getDefaultStream(device(0))), c10::Error);
}

TEST(SimFork, AChildCannotUseADeviceThatItsParentStarted) {
  (void)at::ones({2}, device(0));
  EXPECT_TRUE(at::globalContext().getAcceleratorHooksInterface().hasPrimaryContext(0));
  const pid_t child = fork();
  if (child == 0) {
    try {
      (void)at::ones({2}, device(0));
    } catch (const c10::Error& error) {
      _exit(std::string(error.what()).find("forked") != std::string::npos ? 7 : 8);
    }
    _exit(9);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

/// A program of its own: nothing else may have started the driver.
TEST(SimDriverDeathTest, CountingAndSeedingDoNotStartTheDriver) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        (void)at::accelerator::deviceCount();
        (void)at::accelerator::getDeviceIndex();
        at::Generator(at::globalContext().defaultGenerator(device(1))).set_current_seed(3);
        const auto& hooks = at::globalContext().getAcceleratorHooksInterface();
        const bool before = hooks.hasPrimaryContext(0) || hooks.hasPrimaryContext(1);
        (void)at::ones({2}, device(1));
        _exit(!before && hooks.hasPrimaryContext(1) && !hooks.hasPrimaryContext(0) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace levin::testing
