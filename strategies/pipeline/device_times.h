#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace levin {

/// Moments in the work of a device, by the host's monotonic clock: on the CPU when the calling thread was there, on
/// other devices when the thread's current stream was, which the host is ahead of.
class DeviceTimes {
 public:
  explicit DeviceTimes(const at::Device& device) : device_(device) {}

  /// Notes that the work given so far ends here, and returns the moment's number: 0, 1, 2 and so on. Waits for nothing.
  size_t mark();
  /// Returns all moments, in nanoseconds. Waits for the device.
  std::vector<int64_t> read() const;

  /// Nanoseconds of the host's monotonic clock.
  static int64_t now();

 private:
  const at::Device device_;
  std::vector<int64_t> on_host_;
  std::vector<c10::Event> on_device_;
};

}  // namespace levin
