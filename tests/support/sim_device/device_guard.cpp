#include "tests/support/sim_device/device_guard.h"

#include "tests/support/sim_device/device_memory.h"
#include "tests/support/sim_device/host_wait.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/streams.h"

#include <c10/util/Exception.h>

#include <mutex>

namespace levin::testing::sim {
namespace {

/// An event: what its stream had been given when it was recorded.
struct EventState {
  VectorClock clock;
  size_t stream = 0;
  uint64_t recording = 0;  ///< the Recording that the stream belonged to; 0 for none
  bool asked = false;      ///< by queryEvent, since it was recorded
};

EventState& state_of(void* event) { return *static_cast<EventState*>(event); }

c10::DeviceIndex index_or_current(const c10::Device& device) {
  return device.has_index() ? device.index() : Streams::instance().current_device();
}

std::unique_lock<std::recursive_mutex> lock_hardware() { return std::unique_lock(Hardware::instance().mutex()); }

}  // namespace

c10::Device DeviceGuardImpl::getDevice() const { return {kDeviceType, Streams::instance().current_device()}; }

c10::Device DeviceGuardImpl::exchangeDevice(c10::Device device) const {
  const c10::Device before = getDevice();
  setDevice(device);
  return before;
}

void DeviceGuardImpl::setDevice(c10::Device device) const { Streams::instance().set_current_device(device.index()); }

void DeviceGuardImpl::uncheckedSetDevice(c10::Device device) const noexcept {
  if (device.index() >= 0 && device.index() < deviceCount()) setDevice(device);
}

c10::DeviceIndex DeviceGuardImpl::deviceCount() const noexcept { return Hardware::instance().options().devices; }

c10::Stream DeviceGuardImpl::getStream(c10::Device device) const {
  return Streams::instance().current(index_or_current(device));
}

c10::Stream DeviceGuardImpl::getDefaultStream(c10::Device device) const {
  return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDeviceType, index_or_current(device)));
}

c10::Stream DeviceGuardImpl::getStreamFromGlobalPool(c10::Device device, bool) const {
  return Streams::instance().from_pool(index_or_current(device));
}

c10::Stream DeviceGuardImpl::getNewStream(c10::Device device, int) const {
  return Streams::instance().from_pool(index_or_current(device));
}

c10::Stream DeviceGuardImpl::exchangeStream(c10::Stream stream) const {
  return Streams::instance().exchange_current(stream);
}

bool DeviceGuardImpl::queryStream(const c10::Stream& stream) const {
  const auto lock = lock_hardware();
  return Streams::instance().poll(index_of(stream));
}

void DeviceGuardImpl::synchronizeStream(const c10::Stream& stream) const {
  host_waits_for_stream(Wait::kStream, index_of(stream));
}

void DeviceGuardImpl::synchronizeDevice(c10::DeviceIndex device) const {
  Hardware::instance().check_index(device);
  host_waits(Wait::kDevice);
  const auto lock = lock_hardware();
  Hardware::instance().start(device);
  Streams& streams = Streams::instance();
  VectorClock all;
  for (int64_t i = 0; i < kStreamsPerDevice; ++i)
    all.merge(streams.clock(static_cast<size_t>(device * kStreamsPerDevice + i)));
  streams.host_learns(all);
}

void DeviceGuardImpl::destroyEvent(void* event, c10::DeviceIndex) const noexcept {
  delete static_cast<EventState*>(event);
}

void DeviceGuardImpl::record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const {
  const auto lock = lock_hardware();
  if (*event == nullptr) *event = new EventState();
  const size_t index = index_of(stream);
  const Recording* recording = Recording::of_stream(index);
  state_of(*event) = {.clock = Streams::instance().clock(index),
                      .stream = index,
                      .recording = recording == nullptr ? 0 : recording->id(),
                      .asked = false};
}

void DeviceGuardImpl::block(void* event, const c10::Stream& stream) const {
  if (event == nullptr) return;
  const auto lock = lock_hardware();
  const EventState& state = state_of(event);
  Recording::wait_for_event(index_of(stream), state.recording);
  Streams::instance().order_after(index_of(stream), state.clock);
}

bool DeviceGuardImpl::queryEvent(void* event) const {
  if (event == nullptr) return true;
  const auto lock = lock_hardware();
  return Streams::instance().poll(state_of(event).clock, state_of(event).asked);
}

void DeviceGuardImpl::synchronizeEvent(void* event) const {
  if (event == nullptr) return;
  host_waits(Wait::kEvent, state_of(event).stream);
  const auto lock = lock_hardware();
  Streams::instance().host_learns(state_of(event).clock);
}

double DeviceGuardImpl::elapsedTime(void* from, void* to, c10::DeviceIndex) const {
  const auto lock = lock_hardware();
  return static_cast<double>(state_of(to).clock.time() - state_of(from).clock.time()) / 1000;
}

void DeviceGuardImpl::recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const {
  DeviceMemory::instance().recordStream(pointer, stream);
}

}  // namespace levin::testing::sim
