#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/data/batch.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

namespace levin::data {

/// Result of a worker's turn: a batch, an error, or neither at the end of its part.
struct FetchResult {
  std::optional<Batch> batch;
  std::exception_ptr error;
};

/// A bounded queue from one worker to the thread that consumes its batches. Allocates only when it is made.
class BatchQueue {
 public:
  explicit BatchQueue(int64_t capacity) : slots_(static_cast<size_t>(capacity)) {}

  /// Adds a result; waits for room. Returns false, and drops the result, once the queue is closed.
  bool push(FetchResult result);
  /// Waits until there is a result or the queue is closed, adding the time to `waited`. Returns false where neither has
  /// come after `timeout`, if there is one.
  bool wait(std::chrono::nanoseconds& waited, std::optional<std::chrono::nanoseconds> timeout);
  /// Removes a result, which wait() has found. Nothing once the queue is closed.
  std::optional<FetchResult> pop();
  /// Ends all waiting and drops what is queued.
  void close();

 private:
  Mutex mutex_;
  ConditionVariable has_room_;
  ConditionVariable has_result_;
  std::vector<FetchResult> slots_ LEVIN_GUARDED_BY(mutex_);  ///< a ring
  size_t first_ LEVIN_GUARDED_BY(mutex_) = 0;
  size_t count_ LEVIN_GUARDED_BY(mutex_) = 0;
  bool closed_ LEVIN_GUARDED_BY(mutex_) = false;
};

}  // namespace levin::data
