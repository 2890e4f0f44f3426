#pragma once

#include <levin/core/data/index_order.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin::data {

/// A permutation of 0 to size - 1 that is computed where it is read, and so takes no memory: a Feistel network (Luby
/// and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988) over the least power of
/// four that is not below `size`, run again for results beyond it (Black and Rogaway, "Ciphers with arbitrary finite
/// domains", 2002). Of few numbers it is a list of RandomSampler's, whose permutations are all as frequent.
class Permutation : public IndexOrder {
 public:
  /// Numbers up to which it is a list.
  static constexpr int64_t kMostListed = int64_t{1} << 16;

  Permutation(int64_t size, uint64_t seed, int64_t epoch);

  int64_t size() const override { return size_; }
  /// Returns the number at a place.
  int64_t at(int64_t place) const;
  std::vector<int64_t> indices(int64_t begin, int64_t end) const override;

 private:
  int64_t size_;
  std::vector<int64_t> list_;
  int half_bits_ = 1;  ///< of the network's numbers
  std::vector<uint64_t> keys_;
};

/// The order of a Permutation drawn from (seed, epoch).
class PermutationSampler : public UnlistedSampler {
 public:
  int64_t length(int64_t dataset_size) const override { return dataset_size; }
  std::shared_ptr<const IndexOrder> index_order(int64_t dataset_size, uint64_t seed, int64_t epoch) const override;
};

}  // namespace levin::data
