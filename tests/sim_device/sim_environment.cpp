#include "tests/support/sim_device/sim_accelerator.h"
#include "tests/support/sim_device/sim_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

namespace levin::testing {
namespace {

/// The device is there before the first test, also in the children of death tests, which have no listeners.
class InstallSim final : public ::testing::Environment {
  void SetUp() override { sim::install_accelerator({.devices = 4}); }
};

/// Every test begins with idle devices and an empty report.
class BeginAfresh final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    const c10::impl::VirtualGuardImpl backend(sim::kDeviceType);
    for (c10::DeviceIndex i = 0; i < backend.deviceCount(); ++i)
      if (sim::Hardware::instance().is_started(i)) backend.synchronizeDevice(i);
    sim::reset_report();
  }
};

[[maybe_unused]] const bool registered = [] {
  ::testing::AddGlobalTestEnvironment(new InstallSim);
  ::testing::UnitTest::GetInstance()->listeners().Append(new BeginAfresh);
  return true;
}();

}  // namespace
}  // namespace levin::testing
