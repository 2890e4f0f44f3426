#include <levin/strategies/sharded/shard_layout.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

/// So that each parameter and each shard begin where vector instructions like to read, whatever the type.
constexpr int64_t kAlignment = 8;

int64_t aligned(int64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

ShardLayout::ShardLayout(std::vector<int64_t> sizes, int64_t ranks) : sizes_(std::move(sizes)), even_(true) {
  offsets_.reserve(sizes_.size());
  int64_t end = 0;
  for (const int64_t size : sizes_) {
    offsets_.push_back(end);
    end += aligned(size);
  }
  const int64_t shard_size = aligned((end + ranks - 1) / ranks);
  for (int64_t rank = 0; rank <= ranks; ++rank) begins_.push_back(rank * shard_size);
}

ShardLayout::ShardLayout(std::vector<int64_t> sizes, const std::vector<int64_t>& owners, int64_t ranks)
    : sizes_(std::move(sizes)), offsets_(sizes_.size()), even_(false) {
  int64_t end = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    begins_.push_back(end);
    for (size_t i = 0; i < sizes_.size(); ++i) {
      if (owners[i] != rank) continue;
      offsets_[i] = end;
      end += aligned(sizes_[i]);
    }
  }
  begins_.push_back(end);
}

ShardLayout::LocalShard ShardLayout::local_shard(size_t parameter, int64_t rank) const {
  const int64_t begin = std::max(offsets_[parameter], shard_begin(rank));
  const int64_t end = std::min(offsets_[parameter] + sizes_[parameter], shard_begin(rank + 1));
  if (begin >= end) return {};
  return {.in_parameter = begin - offsets_[parameter], .in_shard = begin - shard_begin(rank), .size = end - begin};
}

}  // namespace levin
