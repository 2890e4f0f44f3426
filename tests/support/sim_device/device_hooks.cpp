#include "tests/support/sim_device/device_hooks.h"

#include "tests/support/sim_device/device_memory.h"
#include "tests/support/sim_device/generator.h"
#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/memory_kernels.h"
#include "tests/support/sim_device/pinned_memory.h"
#include "tests/support/sim_device/streams.h"

#include <c10/util/Exception.h>

#include <mutex>

namespace levin::testing::sim {

bool DeviceHooks::hasPrimaryContext(c10::DeviceIndex device) const { return Hardware::instance().is_started(device); }

c10::DeviceIndex DeviceHooks::deviceCount() const { return Hardware::instance().options().devices; }

void DeviceHooks::setCurrentDevice(c10::DeviceIndex device) const { Streams::instance().set_current_device(device); }

c10::DeviceIndex DeviceHooks::getCurrentDevice() const { return Streams::instance().current_device(); }

c10::DeviceIndex DeviceHooks::exchangeDevice(c10::DeviceIndex device) const {
  const c10::DeviceIndex before = getCurrentDevice();
  setCurrentDevice(device);
  return before;
}

c10::DeviceIndex DeviceHooks::maybeExchangeDevice(c10::DeviceIndex device) const {
  return device < 0 ? getCurrentDevice() : exchangeDevice(device);
}

bool DeviceHooks::isPinnedPtr(const void* data) const { return PinnedMemory::instance().contains(data); }

c10::Allocator* DeviceHooks::getPinnedMemoryAllocator() const { return &PinnedMemory::instance(); }

c10::Device DeviceHooks::getDeviceFromPtr(void* data) const {
  const std::lock_guard lock(Hardware::instance().mutex());
  const Block* block = DeviceMemory::instance().find(data);
  TORCH_CHECK(block != nullptr, "sim: the address is not in the memory of a device");
  return {kDeviceType, block->device()};
}

const at::Generator& DeviceHooks::getDefaultGenerator(c10::DeviceIndex device) const {
  return DeviceGenerator::default_of(device < 0 ? getCurrentDevice() : device);
}

at::Generator DeviceHooks::getNewGenerator(c10::DeviceIndex device) const {
  return at::make_generator<DeviceGenerator>(device < 0 ? getCurrentDevice() : device);
}

void DeviceHooks::resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const {
  resize_storage(storage, bytes);
}

}  // namespace levin::testing::sim
