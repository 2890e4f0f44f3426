#include <levin/strategies/pipeline/device_times.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cmath>

namespace levin {
namespace {

/// An event that knows its time, on the calling thread's current stream.
c10::Event record_event(const at::Device& device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

int64_t DeviceTimes::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

size_t DeviceTimes::mark() {
  if (device_.is_cpu()) {
    on_host_.push_back(now());
    return on_host_.size() - 1;
  }
  on_device_.push_back(record_event(device_));
  return on_device_.size() - 1;
}

std::vector<int64_t> DeviceTimes::read() const {
  if (on_device_.empty()) return on_host_;
  // The host comes to an event at once only when the device has nothing else to do.
  on_device_.back().synchronize();
  const c10::Event last = record_event(device_);
  last.synchronize();
  const int64_t then = now();
  std::vector<int64_t> times;
  for (const c10::Event& event : on_device_) times.push_back(then - std::llround(event.elapsedTime(last) * 1e6));
  return times;
}

}  // namespace levin
