#include "tests/support/sim_device/device_memory.h"
#include "tests/support/sim_device/sim_device.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <string>

namespace levin::testing {
namespace {

using sim::device;

TEST(SimDevice, IsTheAcceleratorWithSeveralIndices) {
  EXPECT_EQ(at::getAccelerator(), at::kPrivateUse1);
  EXPECT_EQ(at::accelerator::deviceCount(), 4);
  EXPECT_EQ(device(1).str(), "sim:1");
  EXPECT_EQ(at::Device("sim:1"), device(1));
}

TEST(SimDevice, NewTensorsAreOnTheThreadsCurrentDevice) {
  at::accelerator::setDeviceIndex(1);
  EXPECT_EQ(at::empty({2}, at::TensorOptions(at::kPrivateUse1)).device(), device(1));
  at::accelerator::setDeviceIndex(0);
  EXPECT_EQ(at::empty({2}, at::TensorOptions(at::kPrivateUse1)).device(), device(0));
}

TEST(SimDevice, AnIndexThatIsNoDeviceIsRefused) {
  EXPECT_THROW(at::accelerator::setDeviceIndex(4), c10::Error);
  EXPECT_THROW(at::empty({2}, at::Device(at::kPrivateUse1, 5)), c10::Error);
}

/// Whether a process ended with the signal of a memory fault, or a sanitizer ended it in the signal's place.
bool has_faulted(int status) {
#ifdef LEVIN_SANITIZED
  return WIFEXITED(status) && WEXITSTATUS(status) != 0;
#else
  return ::testing::KilledBySignal(SIGSEGV)(status);
#endif
}

TEST(SimMemoryDeathTest, TheHostFaultsWhenItTouchesTheDevicesMemory) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const at::Tensor tensor = at::ones({4}, device(0));
  const auto* address = static_cast<const volatile float*>(tensor.const_data_ptr());
  EXPECT_EXIT(static_cast<void>(*address), has_faulted, "");
  EXPECT_EXIT(*const_cast<volatile float*>(address) = 1, has_faulted, "");
}

TEST(SimMemory, KernelsUseItAndTheHostReadsACopy) {
  const at::Tensor tensor = at::arange(6, device(0)).to(at::kFloat).view({2, 3}).t().contiguous();
  EXPECT_TRUE(tensor.cpu().equal(at::arange(6).to(at::kFloat).view({2, 3}).t()));
  EXPECT_EQ((tensor + 1).sum().item<float>(), 21);
  EXPECT_TRUE(tensor.to(device(1)).cpu().equal(tensor.cpu()));
  EXPECT_TRUE(sim::report().faults.empty()) << sim::report().to_string();
}

TEST(SimMemory, TensorsOfOtherDevicesAreRefused) {
  const at::Tensor here = at::ones({8}, device(0));
  EXPECT_THROW(here + at::ones({8}), c10::Error);
  EXPECT_THROW(here + at::ones({8}, device(1)), c10::Error);
  EXPECT_EQ((here + at::scalar_tensor(2)).device(), device(0));
}

TEST(SimMemory, FreshMemoryIsNotZero) {
  EXPECT_TRUE(at::empty({16}, device(0)).isnan().all().item<bool>());
  EXPECT_TRUE(at::empty({16}, at::TensorOptions(device(0)).dtype(at::kBFloat16)).isnan().all().item<bool>());
}

TEST(SimMemory, IsCounted) {
  auto& memory = *c10::getDeviceAllocator(at::kPrivateUse1);
  const auto allocated = [&] { return memory.getDeviceStats(1).allocated_bytes[0].current; };
  const int64_t before = allocated();
  {
    const at::Tensor tensor = at::empty({1000}, device(1));
    EXPECT_EQ(allocated(), before + 4000);
  }
  EXPECT_EQ(allocated(), before);
  EXPECT_GE(memory.getDeviceStats(1).allocated_bytes[0].peak, before + 4000);
}

TEST(SimMemory, EndsWithAnOutOfMemoryErrorAndGoesOn) {
  sim::Hardware::instance().set_memory(1 << 20);
  EXPECT_THROW(at::empty({1 << 20}, device(0)), c10::OutOfMemoryError);
  EXPECT_EQ(at::ones({16}, device(0)).sum().item<float>(), 16);
  sim::Hardware::instance().set_memory(size_t{1} << 30);
}

TEST(SimMemory, ResizingKeepsWhatItHolds) {
  at::Tensor tensor = at::arange(3, device(1));
  tensor.resize_({5000});
  EXPECT_TRUE(tensor.narrow(0, 0, 3).cpu().equal(at::arange(3)));
  at::Tensor out = at::empty({0}, device(0));
  at::cat_out(out, {at::ones({2}, device(0)), at::zeros({1}, device(0))});
  EXPECT_TRUE(out.cpu().equal(at::tensor({1.0F, 1.0F, 0.0F})));
}

}  // namespace
}  // namespace levin::testing
