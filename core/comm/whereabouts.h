#pragma once

#include <atomic>
#include <cstdint>

namespace levin {

/// Where a rank is at this moment: written by the rank's own thread, read by helper threads, so that a stall can be
/// explained. Names are string literals. Writing costs a relaxed store.
struct Whereabouts {
  std::atomic<const char*> activity{"starting"};  ///< the hook or phase of a step under way
  std::atomic<const char*> collective{nullptr};   ///< the collective that the rank waits in, or nullptr
  std::atomic<int64_t> batch{-1};                 ///< the training batch under way, counted over all epochs
};

}  // namespace levin
