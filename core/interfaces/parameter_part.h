#pragma once

#include <levin/core/base/state.h>
#include <levin/core/comm/dimension_cut.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// This rank's part of a parameter (or buffer) that ranks divide: some of its elements in their flat order, all of
/// them, or none; or a share of one of its dimensions. Of those, `placed` and `own_part` of what `placed` has made are
/// collectives of the ranks that have the shares.
class ParameterPart {
 public:
  /// `local_shard`, of any shape, holds the elements from `offset` on of a parameter of this shape.
  ParameterPart(at::Tensor local_shard, int64_t offset, std::vector<int64_t> shape)
      : local_shard_(std::move(local_shard)), offset_(offset), shape_(std::move(shape)) {}
  /// `local_shard` is this rank's share of a dimension.
  ParameterPart(at::Tensor local_shard, DimensionCut cut);

  const at::Tensor& local_shard() const { return local_shard_; }
  /// Whether this rank holds the parameter's first element. (Ranks that hold the same part all do.)
  bool has_first_element() const;
  /// Rows of the parameter: outputs of a matrix, filters of a convolution; a vector is one row.
  int64_t row_count() const;
  /// The row of each element of the local shard.
  at::Tensor rows() const;

  /// Makes a leaf of a checkpoint from a value for each element of the local shard, such as the local shard itself or
  /// what an optimizer keeps for it. `whole_name` is that of the whole tensor.
  TensorLeaf placed(const at::Tensor& value, const std::string& whole_name) const;
  /// Whether a tensor has the parameter's shape, or is this rank's part of such a tensor.
  bool is_of(const TensorLeaf& leaf) const;
  /// Returns this rank's part of such a tensor, wherever it lies, in the shape of the local shard.
  at::Tensor own_part(const TensorLeaf& leaf) const;
  /// Copies this rank's part of such a tensor into the local shard.
  void load(const TensorLeaf& leaf) const;

 private:
  at::Tensor local_shard_;
  int64_t offset_;
  std::vector<int64_t> shape_;
  std::optional<DimensionCut> cut_ = {};
};

}  // namespace levin
