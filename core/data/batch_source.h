#pragma once

#include <levin/core/data/batch.h>

#include <chrono>
#include <optional>

namespace levin::data {

/// Source of the batches of one pass.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Returns the next batch, or nothing at the end. Adds the time spent waiting for it to `waited`. Throws levin::Error
  /// after stop().
  virtual std::optional<Batch> next(std::chrono::nanoseconds& waited) = 0;
  /// Ends fetching for good; returns when no worker fetches any more. Called from any thread.
  virtual void stop() = 0;
};

}  // namespace levin::data
