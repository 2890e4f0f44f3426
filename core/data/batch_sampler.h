#pragma once

#include <levin/core/data/sampler.h>

#include <cstdint>
#include <vector>

namespace levin::data {

/// Order of the examples with its division into batches, whose sizes may differ. Batches are those of all ranks
/// together: each rank gets its part of each, so that another number of ranks changes nothing that a step sees.
class BatchSampler : public Sampler {
 public:
  struct Batches {
    std::vector<int64_t> order;  ///< examples of all batches, one behind the other
    std::vector<int64_t> ends;   ///< how many there are up to the end of each batch; none is empty
  };
  /// Returns the batches of an epoch: a pure function of (size, seed, epoch).
  virtual Batches batches(int64_t dataset_size, uint64_t seed, int64_t epoch) const = 0;
  /// Returns the number of batches, the same in every epoch. Default: makes those of one epoch and counts.
  virtual int64_t num_batches(int64_t dataset_size) const;

  std::vector<int64_t> order(int64_t dataset_size, uint64_t seed, int64_t epoch) const final;
};

}  // namespace levin::data
