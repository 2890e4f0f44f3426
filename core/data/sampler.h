#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace levin::data {

/// The stream of (seed, epoch) from which orders are drawn. Samples count from 0, so that it is none of theirs.
inline constexpr int64_t kOrderStream = -1;

/// Order in which the examples of a sized data set are visited: a pure function of (size, seed, epoch).
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Returns the indices in order; may repeat or leave out examples (weighted sampling).
  virtual std::vector<int64_t> order(int64_t dataset_size, uint64_t seed, int64_t epoch) const = 0;
  /// Returns the number of indices that `order` gives, the same in every epoch. Default: makes one order and counts.
  virtual int64_t length(int64_t dataset_size) const;
};

/// The order 0, 1, 2, ...
class SequentialSampler : public Sampler {
 public:
  std::vector<int64_t> order(int64_t dataset_size, uint64_t seed, int64_t epoch) const override;
  int64_t length(int64_t dataset_size) const override { return dataset_size; }
};

/// A Fisher-Yates permutation drawn from (seed, epoch).
class RandomSampler : public Sampler {
 public:
  std::vector<int64_t> order(int64_t dataset_size, uint64_t seed, int64_t epoch) const override;
  int64_t length(int64_t dataset_size) const override { return dataset_size; }
};

}  // namespace levin::data
