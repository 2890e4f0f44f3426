#pragma once

#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/vector_clock.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace levin::testing::sim {

/// What LibTorch asks of a device kind: current devices and streams, events, waits.
class DeviceGuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDeviceType; }
  c10::Device exchangeDevice(c10::Device device) const override;
  c10::Device getDevice() const override;
  void setDevice(c10::Device device) const override;
  void uncheckedSetDevice(c10::Device device) const noexcept override;
  c10::DeviceIndex deviceCount() const noexcept override;
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override;
  c10::Stream getDefaultStream(c10::Device device) const override;
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority = false) const override;
  c10::Stream getNewStream(c10::Device device, int priority = 0) const override;
  c10::Stream exchangeStream(c10::Stream stream) const override;
  bool queryStream(const c10::Stream& stream) const override;
  void synchronizeStream(const c10::Stream& stream) const override;
  void synchronizeDevice(c10::DeviceIndex device) const override;

  void destroyEvent(void* event, c10::DeviceIndex device) const noexcept override;
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device, c10::EventFlag flag) const override;
  void block(void* event, const c10::Stream& stream) const override;
  bool queryEvent(void* event) const override;
  void synchronizeEvent(void* event) const override;
  /// In milliseconds of VectorClock::time: a piece of work takes a microsecond.
  double elapsedTime(void* from, void* to, c10::DeviceIndex device) const override;

  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override;
};

}  // namespace levin::testing::sim
