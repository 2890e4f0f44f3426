#pragma once

#include "tests/support/sim_device/device_memory.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace levin::testing::sim {

/// Kernels and copies that can be run again on the same memory.
using RecordedWork = std::vector<std::function<void()>>;

/// Records what is given to a stream, as a CUDA graph's capture does: the device is afterwards as if nothing had run,
/// its random generators included; waits of the recording thread, and waits for a recorded stream by any thread, are
/// refused and make the recording invalid. A stream that waits for a recorded one is recorded as well. Static members,
/// and what kernels call, hold the hardware's mutex.
class Recording {
 public:
  /// Begins on the calling thread, which has no other recording.
  explicit Recording(const c10::Stream& stream);
  /// Ends it if end() was not called.
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Ends on the thread that began, and undoes what ran meanwhile. Throws when the recording became invalid.
  RecordedWork end();

  static Recording* of_thread();
  static Recording* of_stream(size_t stream);
  /// A stream waits for an event that was recorded in the recording `id`, 0 for none. Throws if it is recorded itself
  /// and the event is not of its recording.
  static void wait_for_event(size_t stream, uint64_t id);

  uint64_t id() const { return id_; }
  void invalidate() { is_valid_ = false; }
  /// Keeps what a block holds before its first change.
  void before_write(Block& block);
  void add(std::function<void()> work) { work_.push_back(std::move(work)); }

 private:
  struct Saved {
    const char* base;
    std::string bytes;
  };
  void finish();

  const uint64_t id_;
  std::vector<size_t> streams_;
  uint64_t first_serial_;  ///< of blocks that are allocated meanwhile
  std::map<uint64_t, Saved> saved_;
  std::vector<at::Tensor> generator_states_;
  RecordedWork work_;
  bool is_valid_ = true;
  bool has_ended_ = false;
};

}  // namespace levin::testing::sim
