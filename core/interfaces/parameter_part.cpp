#include <levin/core/interfaces/parameter_part.h>

#include <levin/core/comm/collective.h>
#include <levin/core/interchange/weight_plan.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace levin {

ParameterPart::ParameterPart(at::Tensor local_shard, DimensionCut cut)
    : local_shard_(std::move(local_shard)),
      offset_(0),
      shape_(cut.whole_shape(local_shard_.sizes())),
      cut_(std::move(cut)) {}

bool ParameterPart::has_first_element() const {
  return offset_ == 0 && local_shard_.numel() > 0 && (!cut_ || cut_->group()->rank() == 0);
}

int64_t ParameterPart::row_count() const { return shape_.size() <= 1 ? 1 : shape_.front(); }

at::Tensor ParameterPart::rows() const {
  const int64_t elements = std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>());
  const auto options = at::TensorOptions().dtype(at::kLong).device(local_shard_.device());
  if (cut_) {
    std::vector<int64_t> ones(shape_.size(), 1);
    if (!ones.empty()) ones.front() = row_count();
    return cut_->part_of(at::arange(row_count(), options).view(ones).expand(shape_)).view({-1});
  }
  const int64_t row_size = std::max<int64_t>(1, elements / std::max<int64_t>(1, row_count()));
  return at::arange(offset_, offset_ + local_shard_.numel(), options).div_(row_size, "floor");
}

TensorLeaf ParameterPart::placed(const at::Tensor& value, const std::string& whole_name) const {
  at::Tensor elements = value.detach().reshape({-1});
  int64_t offset = offset_;
  if (cut_) {
    // Files have elements in their flat order: each rank writes as many of them as its share has.
    offset = cut_->group()->rank() * elements.numel();
    elements = cut_->whole_of(value).view({-1}).narrow(0, offset, elements.numel()).clone();
  }
  return {std::move(elements),
          {.kind = Placement::Kind::kSharded, .shard_name = whole_name, .offset = offset, .global_shape = shape_}};
}

bool ParameterPart::is_of(const TensorLeaf& leaf) const {
  const at::IntArrayRef shape = shape_;
  if (leaf.saved != nullptr) return shape == at::IntArrayRef(leaf.saved->shape());
  return leaf.placement.kind == Placement::Kind::kSharded ? shape == at::IntArrayRef(leaf.placement.global_shape)
                                                          : shape == leaf.value.sizes();
}

at::Tensor ParameterPart::own_part(const TensorLeaf& leaf) const {
  if (cut_) {
    if (leaf.saved != nullptr) return cut_->part_of(leaf.saved->read_whole());
    return cut_->part_of(leaf.placement.kind == Placement::Kind::kSharded
                             ? gather_flat(*cut_->group(), leaf.value).view(shape_)
                             : leaf.value);
  }
  const int64_t size = local_shard_.numel();
  if (leaf.saved != nullptr) {
    const c10::InferenceMode ordinary(false);
    at::Tensor part = at::empty({size}, at::TensorOptions().dtype(leaf.saved->dtype()));
    if (size > 0) leaf.saved->read(offset_, part);
    return part.view(local_shard_.sizes());
  }
  if (leaf.placement.kind == Placement::Kind::kSharded) return leaf.value.view(local_shard_.sizes());
  return leaf.value.reshape({-1}).narrow(0, offset_, size).view(local_shard_.sizes());
}

void ParameterPart::load(const TensorLeaf& leaf) const {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  if (leaf.saved != nullptr && local_shard_.is_contiguous() && !cut_)
    read_part_into(*leaf.saved, offset_, local_shard_.detach());
  else
    local_shard_.detach().copy_(own_part(leaf));
}

}  // namespace levin
