#pragma once

#include <levin/core/data/sampler.h>

#include <cstdint>
#include <vector>

namespace levin::data {

/// The order of a stream that reads shards one after the other, in an order drawn from (seed, epoch), and gives out
/// examples through a buffer: each time a random one of the buffer, whose place the next one read takes. Neighbours in
/// a shard so stay near each other, and files are read nearly in order.
class ShardSampler : public Sampler {
 public:
  /// `sizes`: the examples of each shard, which are counted on from shard to shard. `buffer`: examples in it; 1 keeps
  /// the order in the shards.
  ShardSampler(std::vector<int64_t> sizes, int64_t buffer);

  /// Throws levin::Error when the data set has another number of examples than the shards.
  std::vector<int64_t> order(int64_t dataset_size, uint64_t seed, int64_t epoch) const override;
  int64_t length(int64_t dataset_size) const override { return dataset_size; }

 private:
  std::vector<int64_t> sizes_;
  int64_t buffer_;
};

}  // namespace levin::data
