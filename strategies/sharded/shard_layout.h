#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace levin {

/// Layout of parameters one after another in a flat tensor, which ranks divide into equal shards. Pure arithmetic, in
/// elements.
class ShardLayout {
 public:
  /// Parameters of so many elements, over so many ranks.
  ShardLayout(std::vector<int64_t> sizes, int64_t ranks);

  int64_t shard_size() const { return shard_size_; }
  /// Elements of the flat tensor: the parameters, and between them and at its end what aligns them and makes the shards
  /// equal.
  int64_t flat_size() const { return shard_size_ * ranks_; }

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
  int64_t ranks_;
  int64_t shard_size_ = 0;
};

}  // namespace levin
