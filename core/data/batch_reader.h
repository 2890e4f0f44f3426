#pragma once

#include <levin/core/data/batch.h>

#include <optional>

namespace levin::data {

/// Reader of the batches that one worker fetches in one pass, in order.
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  /// Returns the next batch, or nothing at the end. Called by one thread at a time.
  virtual std::optional<Batch> next() = 0;
};

}  // namespace levin::data
