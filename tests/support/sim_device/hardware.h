#pragma once

#include "tests/support/sim_device/vector_clock.h"

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>

namespace levin::testing::sim {

constexpr auto kDeviceType = c10::DeviceType::PrivateUse1;

/// When a copy that the host does not wait for (`non_blocking`, to or from page-locked memory) touches the host's
/// memory.
enum class CopyTiming {
  kLate,   ///< only when the host has waited for it, or when work on the device needs the data
  kEarly,  ///< before the call returns
};

struct HardwareOptions {
  c10::DeviceIndex devices = kMaximumDevices;  ///< 1 to kMaximumDevices
  size_t memory = size_t{1} << 30;             ///< bytes of each device
  CopyTiming copies = CopyTiming::kLate;
};

/// The simulated machine. It does one thing at a time: whatever touches its state holds its mutex.
class Hardware {
 public:
  static Hardware& instance();

  std::recursive_mutex& mutex() { return mutex_; }
  const HardwareOptions& options() const { return options_; }
  /// Once, before the device is first used.
  void configure(const HardwareOptions& options);
  void set_copies(CopyTiming timing);
  void set_memory(size_t bytes);

  /// Throws for an index that is no device.
  void check_index(c10::DeviceIndex device) const;
  /// Starts the device's driver, as its first allocation, kernel or wait does. Throws in a child that was forked from a
  /// process in which a driver ran already, as CUDA's does.
  void start(c10::DeviceIndex device);
  /// From now on whatever uses this device throws, as when a GPU falls off the bus; give_back() mends it.
  void lose(c10::DeviceIndex device);
  void give_back(c10::DeviceIndex device);
  /// Throws where a device was lost.
  void check_alive(c10::DeviceIndex device) const;
  /// From now on there is no kernel for this operator ("aten::tanh"); empty: there are all again.
  void set_missing_operator(const std::string& name);
  std::string missing_operator() const;

  /// Whether the driver of this device runs: counting devices and asking for the current one do not start it.
  bool is_started(c10::DeviceIndex device) const;

 private:
  Hardware();

  mutable std::recursive_mutex mutex_;
  HardwareOptions options_;
  std::atomic<bool> started_[4] = {};  // autograd asks without the lock
  std::atomic<bool> lost_[4] = {};
  std::string missing_operator_;
  bool forked_after_start_ = false;
};

/// Copies as early as they may, while it lives.
class EarlyCopies {
 public:
  EarlyCopies() { Hardware::instance().set_copies(CopyTiming::kEarly); }
  ~EarlyCopies() { Hardware::instance().set_copies(CopyTiming::kLate); }
  EarlyCopies(const EarlyCopies&) = delete;
  EarlyCopies& operator=(const EarlyCopies&) = delete;
};

}  // namespace levin::testing::sim
