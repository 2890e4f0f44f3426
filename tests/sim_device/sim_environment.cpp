#include "tests/support/sim_device/sim_accelerator.h"
#include "tests/support/sim_device/sim_device.h"

#include <gtest/gtest.h>

namespace levin::testing {
namespace {

/// The device is there before the first test, also in the children of death tests, which have no listeners.
class InstallSim final : public ::testing::Environment {
  void SetUp() override { sim::install_accelerator(); }
};

/// Every test begins with an empty report.
class ResetReport final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { sim::reset_report(); }
};

[[maybe_unused]] const bool registered = [] {
  ::testing::AddGlobalTestEnvironment(new InstallSim);
  ::testing::UnitTest::GetInstance()->listeners().Append(new ResetReport);
  return true;
}();

}  // namespace
}  // namespace levin::testing
