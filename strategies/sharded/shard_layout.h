#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace levin {

/// Layout of parameters in a flat tensor, which ranks divide into shards: one after another, in equal shards, or each
/// in the shard of its owner. Pure arithmetic, in elements.
class ShardLayout {
 public:
  /// Parameters of so many elements, in equal shards over so many ranks.
  ShardLayout(std::vector<int64_t> sizes, int64_t ranks);
  /// Each parameter whole in the shard of the rank that is its owner.
  ShardLayout(std::vector<int64_t> sizes, const std::vector<int64_t>& owners, int64_t ranks);

  /// Whether parameters are cut, into shards that are equal.
  bool is_even() const { return even_; }
  int64_t shard_begin(int64_t rank) const { return begins_[static_cast<size_t>(rank)]; }
  int64_t shard_size(int64_t rank) const { return shard_begin(rank + 1) - shard_begin(rank); }
  /// Elements of the flat tensor: the parameters, and between them and at its end what aligns them and makes the shards
  /// equal.
  int64_t flat_size() const { return begins_.back(); }

  int64_t offset(size_t parameter) const { return offsets_[parameter]; }
  int64_t parameter_size(size_t parameter) const { return sizes_[parameter]; }

  /// The part of a parameter that a shard holds; without elements where it holds none.
  struct LocalShard {
    int64_t in_parameter = 0;  ///< where it begins in the parameter
    int64_t in_shard = 0;      ///< where it begins in the shard
    int64_t size = 0;
  };
  LocalShard local_shard(size_t parameter, int64_t rank) const;

 private:
  std::vector<int64_t> sizes_;
  std::vector<int64_t> offsets_;
  std::vector<int64_t> begins_;  ///< of shards, and the end of the last one
  bool even_;
};

}  // namespace levin
