#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin {

class Collective;

/// The part of a tensor that each rank of a group holds: an equal share of a dimension. Where the dimension consists of
/// several pieces, one after the other (queries, keys and values of a fused projection), it is a share of each.
class DimensionCut {
 public:
  /// The dimension's size is a multiple of pieces times ranks.
  DimensionCut(std::shared_ptr<Collective> group, int64_t dim, int64_t pieces = 1);

  const std::shared_ptr<Collective>& group() const { return group_; }
  int64_t dim() const { return dim_; }
  std::vector<int64_t> whole_shape(at::IntArrayRef part) const;
  /// Returns this rank's part of a tensor, in memory of its own.
  at::Tensor part_of(const at::Tensor& whole) const;
  /// Returns the tensor of which the ranks have the parts. Collective.
  at::Tensor whole_of(const at::Tensor& part) const;

 private:
  std::shared_ptr<Collective> group_;
  int64_t dim_;
  int64_t pieces_;
};

/// Gives every rank the elements of all, in the order of ranks. Collective.
at::Tensor gather_flat(Collective& group, const at::Tensor& tensor);

}  // namespace levin
