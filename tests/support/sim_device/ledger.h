#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace levin::testing::sim {

/// The ways in which the host waits for a device.
enum class Wait {
  kStream,         ///< a stream is synchronised
  kEvent,          ///< an event is synchronised
  kDevice,         ///< a device is synchronised
  kItem,           ///< a value is read: item(), a condition on a tensor
  kCopyToHost,     ///< a copy to the host that blocks, or into memory that is not page-locked
  kCopyFromHost,   ///< a copy from the host that blocks
  kStagedCopy,     ///< `non_blocking` from memory that is not page-locked: the host waits until it is staged
  kShapeFromData,  ///< an operator whose result's shape depends on the data: nonzero, masked_select, unique
  kCommunicator,   ///< a communicator is created, which takes all its ranks
  kBarrier,        ///< a barrier of a process group
};
std::string name_of(Wait kind);

/// What the simulated devices have seen.
struct Report {
  int64_t kernels = 0;
  int64_t copies = 0;
  int64_t copies_between_devices = 0;  ///< of these, from one simulated device to another
  int64_t allocations = 0;
  /// Kernels, other than copies, of a device that was not the calling thread's current one. LibTorch runs them where
  /// they belong; they tell of a thread whose current device nobody has set.
  int64_t kernels_off_current_device = 0;
  std::map<Wait, int64_t> waits;          ///< of the host, by kind
  std::map<std::string, int64_t> faults;  ///< what a real device would do wrong, by description

  int64_t total_waits() const;
  /// Lists everything, for the messages of tests.
  std::string to_string() const;
};

/// Keeps the report of the process. Its own lock: it can be read while a kernel runs.
class Ledger {
 public:
  static Ledger& instance();

  Report report() const;
  void reset();
  /// Calls `observer` on the waiting thread at each host wait, for instance to print a stack; {} for none.
  void observe_waits(std::function<void(Wait)> observer);

  void add_kernel(bool on_current_device);
  void add_copy(bool between_devices);
  void add_allocation();
  void add_wait(Wait kind);
  void add_fault(const std::string& description);

 private:
  Ledger() = default;
};

}  // namespace levin::testing::sim
