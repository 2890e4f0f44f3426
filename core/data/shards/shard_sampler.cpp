#include <levin/core/data/shards/shard_sampler.h>

#include <levin/core/base/error.h>
#include <levin/core/data/generator.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace levin::data {

namespace {

// Samples count from 0 and RandomSampler has -1; whole batches have streams of their own below, by their first index.
constexpr int64_t kBufferStream = -1;

}  // namespace

ShardSampler::ShardSampler(std::vector<int64_t> sizes, int64_t buffer)
    : sizes_(std::move(sizes)), buffer_(std::max<int64_t>(buffer, 1)) {}

std::vector<int64_t> ShardSampler::order(int64_t dataset_size, uint64_t seed, int64_t epoch) const {
  std::vector<int64_t> begins(sizes_.size());
  std::exclusive_scan(sizes_.begin(), sizes_.end(), begins.begin(), int64_t{0});
  const int64_t total = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
  if (total != dataset_size)
    throw Error("data", fmt::format("the shards have {} examples, the data set {}", total, dataset_size));

  std::vector<int64_t> indices;
  indices.reserve(static_cast<size_t>(dataset_size));
  std::vector<int64_t> buffer;
  Generator generator(seed, epoch, kBufferStream);
  const auto give = [&]() -> int64_t& {
    int64_t& place = buffer[static_cast<size_t>(generator.below(std::ssize(buffer)))];
    indices.push_back(place);
    return place;
  };
  const auto num_shards = std::ssize(sizes_);
  std::vector<int64_t> shards(sizes_.size());
  std::iota(shards.begin(), shards.end(), int64_t{0});
  for (int64_t i = num_shards - 1; i > 0; --i)
    std::swap(shards[static_cast<size_t>(i)], shards[static_cast<size_t>(generator.below(i + 1))]);
  for (const int64_t shard : shards) {
    const int64_t begin = begins[static_cast<size_t>(shard)];
    for (int64_t index = begin; index < begin + sizes_[static_cast<size_t>(shard)]; ++index) {
      if (std::ssize(buffer) < buffer_)
        buffer.push_back(index);
      else
        give() = index;
    }
  }
  while (!buffer.empty()) {
    std::swap(give(), buffer.back());
    buffer.pop_back();
  }
  return indices;
}

}  // namespace levin::data
