#include <levin/strategies/ranks/local_device.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <tests/strategies/run_ranks.h>

#include <gtest/gtest.h>

#include <memory>

namespace levin::testing {
namespace {

constexpr auto kType = at::DeviceType::MAIA;

/// An accelerator of which a launcher shows this process some devices.
class ShownDevices : public Accelerator {
 public:
  ShownDevices() : Accelerator("shown", kType) {}
  int64_t device_count() const override { return shown; }
  int64_t shown = 0;
};

ShownDevices& shown_devices() {
  static ShownDevices& made = []() -> ShownDevices& {
    auto accelerator = std::make_unique<ShownDevices>();
    ShownDevices& kept = *accelerator;
    AcceleratorRegistry::instance().add(std::move(accelerator));
    return kept;
  }();
  return made;
}

TEST(LocalDeviceTest, ARankTakesTheDeviceOfItsNumber) {
  shown_devices().shown = 4;
  EXPECT_EQ(device_of_local_rank({at::Device(kType, 2), at::Device(kType, 1)}, 1), at::Device(kType, 1));
  EXPECT_EQ(device_of_local_rank({at::Device(kType, 0)}, 3), at::Device(kType, 3));
  EXPECT_EQ(device_of_local_rank({at::Device(at::kCPU)}, 3), at::Device(at::kCPU));
}

TEST(LocalDeviceTest, WhereALauncherShowsEachRankOneDeviceAllTakeTheirFirst) {
  shown_devices().shown = 1;
  for (const int64_t local_rank : {0, 1, 7})
    EXPECT_EQ(device_of_local_rank({at::Device(kType, 0)}, local_rank), at::Device(kType, 0));
}

TEST(LocalDeviceTest, ARankWithoutADeviceIsRefused) {
  shown_devices().shown = 2;
  expect_contains(
      message_of([] { device_of_local_rank({at::Device(kType, 0)}, 2); }),
      "[config] a launcher has started a rank 2 on this host, which shows it 2 devices of 'shown'; valid: ");
}

TEST(LocalDeviceTest, OneNamedDeviceDoesNotServeSeveralRanks) {
  shown_devices().shown = 4;
  expect_contains(message_of([] { device_of_local_rank({at::Device(kType, 2)}, 1); }),
                  "[config] trainer.devices names maia:2, and a launcher has started several ranks on this host");
}

}  // namespace
}  // namespace levin::testing
