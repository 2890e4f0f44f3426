#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace levin::testing::sim {

/// What at::accelerator and at::Context ask of a device kind.
class DeviceHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override;
  void init() const override {}
  c10::DeviceIndex deviceCount() const override;
  void setCurrentDevice(c10::DeviceIndex device) const override;
  c10::DeviceIndex getCurrentDevice() const override;
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override;
  /// As exchangeDevice, but -1 changes nothing.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override;
  bool isPinnedPtr(const void* data) const override;
  c10::Allocator* getPinnedMemoryAllocator() const override;
  c10::Device getDeviceFromPtr(void* data) const override;
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override;
  at::Generator getNewGenerator(c10::DeviceIndex device) const override;
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override;
};

}  // namespace levin::testing::sim
