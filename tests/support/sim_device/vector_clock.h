#pragma once

#include <c10/core/Device.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace levin::testing::sim {

constexpr c10::DeviceIndex kMaximumDevices = 4;
constexpr int64_t kStreamsPerDevice = 32;  ///< stream 0 is the default one
constexpr size_t kMaximumStreams = static_cast<size_t>(kMaximumDevices) * kStreamsPerDevice;

/// What somebody (a stream, an event, the host) knows to be done: of every stream, how many of its pieces of work.
/// (Fidge, "Timestamps in message-passing systems", 1988; Mattern, "Virtual time and global states", 1989.)
class VectorClock {
 public:
  uint64_t operator[](size_t stream) const { return done_[stream]; }

  /// Returns the number of the stream's next piece of work, which counts as done from here on.
  uint64_t advance(size_t stream) {
    ++time_;
    return ++done_[stream];
  }
  /// When that is done, if a piece of work takes a unit of time and none waits for more than it must.
  int64_t time() const { return time_; }

  /// Learns what another clock knows.
  void merge(const VectorClock& other) {
    for (size_t i = 0; i < done_.size(); ++i) done_[i] = std::max(done_[i], other.done_[i]);
    time_ = std::max(time_, other.time_);
  }

 private:
  std::array<uint64_t, kMaximumStreams> done_{};
  int64_t time_ = 0;
};

}  // namespace levin::testing::sim
