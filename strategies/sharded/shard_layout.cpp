#include <levin/strategies/sharded/shard_layout.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

/// So that each parameter and each shard begin where vector instructions like to read, whatever the type.
constexpr int64_t kAlignment = 8;

int64_t aligned(int64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

ShardLayout::ShardLayout(std::vector<int64_t> sizes, int64_t ranks) : sizes_(std::move(sizes)), ranks_(ranks) {
  offsets_.reserve(sizes_.size());
  int64_t end = 0;
  for (const int64_t size : sizes_) {
    offsets_.push_back(end);
    end += aligned(size);
  }
  shard_size_ = aligned((end + ranks_ - 1) / ranks_);
}

ShardLayout::LocalShard ShardLayout::local_shard(size_t parameter, int64_t rank) const {
  const int64_t shard_begin = rank * shard_size_;
  const int64_t begin = std::max(offsets_[parameter], shard_begin);
  const int64_t end = std::min(offsets_[parameter] + sizes_[parameter], shard_begin + shard_size_);
  if (begin >= end) return {};
  return {.in_parameter = begin - offsets_[parameter], .in_shard = begin - shard_begin, .size = end - begin};
}

}  // namespace levin
