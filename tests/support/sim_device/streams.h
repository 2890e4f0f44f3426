#pragma once

#include "tests/support/sim_device/vector_clock.h"

#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>

namespace levin::testing::sim {

/// The stream's place in vector clocks.
size_t index_of(const c10::Stream& stream);
/// The inverse of index_of: "sim:1 stream 3".
std::string stream_name(size_t stream);

/// The streams of all devices, and what the host knows of them. Kernels run when they are launched; the clocks say what
/// a real device might not have run yet. Methods that touch clocks hold the hardware's mutex.
class Streams {
 public:
  static Streams& instance();

  // --- Of the calling thread ---
  c10::DeviceIndex current_device() const;
  /// Throws for an index that is no device.
  void set_current_device(c10::DeviceIndex device);
  c10::Stream current(c10::DeviceIndex device) const;
  c10::Stream exchange_current(const c10::Stream& stream);

  // --- Of the process ---
  c10::Stream from_pool(c10::DeviceIndex device);

  const VectorClock& clock(size_t stream) const;
  const VectorClock& host_clock() const { return host_; }
  /// Gives the stream a piece of work, which comes after all that the host knows to be done; returns its number.
  uint64_t begin_work(size_t stream);
  /// Makes later work of the stream come after what the clock knows.
  void order_after(size_t stream, const VectorClock& clock);
  /// Keeps a copy to or from `bytes` of the host for the moment when the host learns that this piece of work is done.
  void run_late(size_t stream, uint64_t work, std::span<const char> bytes, std::function<void()> copy);
  /// Makes the kept copies of these bytes that come before what the clock knows: another copy of them follows.
  void make_copies_of(std::span<const char> bytes, const VectorClock& before);
  /// The host has waited. Copies that it can now rely on are made.
  void host_learns(const VectorClock& clock);
  /// As cudaStreamQuery: whether all work of the stream is done. With late copies a piece of work under way is "not yet
  /// done" for the first who asks.
  bool poll(size_t stream);
  /// The same for a clock that was `asked` after before.
  bool poll(const VectorClock& clock, bool& asked);

 private:
  struct LateCopy {
    uint64_t work;
    std::span<const char> bytes;
    std::function<void()> copy;
  };
  struct State {
    VectorClock clock;
    std::deque<LateCopy> late;
    uint64_t asked = 0;  ///< the last work when poll() said "not yet"
  };

  Streams() = default;
  bool host_knows(const VectorClock& clock) const;

  State states_[kMaximumStreams];
  VectorClock host_;  ///< of all threads together: no false alarms between threads that talk to each other
  int64_t next_in_pool_[kMaximumDevices] = {};
};

}  // namespace levin::testing::sim
