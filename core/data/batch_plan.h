#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace levin::data {

/// Division of a sized data set's visiting order into batches. With W ranks and batches of B, the global batch b is the
/// order's [b*B*W, (b+1)*B*W); a rank takes its contiguous part of it. A partial last global batch is divided as evenly
/// as possible, so that ranks may get parts of different sizes, or none at all. Global batches of other sizes have
/// their ends listed. One of them with fewer examples than ranks lends its last example to those that have none, so
/// that these can join the step of the others: see own_count.
struct BatchPlan {
  int64_t num_indices = 0;
  int64_t batch_size = 1;  ///< examples in a batch of one rank
  bool drop_last = false;  ///< leaves out a partial last global batch
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t first = 0;  ///< first position of the visiting order; earlier ones were consumed before
  /// Positions at the end of each global batch; nullptr: batch_size, drop_last and first say them.
  std::shared_ptr<const std::vector<int64_t>> ends = nullptr;

  /// Returns the number of this rank's batches.
  int64_t num_batches() const;

  struct Range {
    int64_t begin = 0;  ///< positions in the visiting order
    int64_t end = 0;
  };
  /// Returns this rank's part of a global batch; `batch` < num_batches().
  Range range(int64_t batch) const;
  /// Returns the number of examples in this rank's part; 0 where the one of its range is lent.
  int64_t own_count(int64_t batch) const;
  /// Returns the part of all ranks.
  Range global_range(int64_t batch) const;
  /// Returns the number of examples in a global batch, of all ranks; 0 past the end.
  int64_t global_count(int64_t batch) const;
};

}  // namespace levin::data
