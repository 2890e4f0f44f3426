#include <levin/core/interfaces/parameter_part.h>

#include <levin/core/interchange/weight_plan.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace levin {

int64_t ParameterPart::row_count() const { return shape_.size() <= 1 ? 1 : shape_.front(); }

at::Tensor ParameterPart::rows() const {
  const int64_t elements = std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>());
  const int64_t row_size = std::max<int64_t>(1, elements / std::max<int64_t>(1, row_count()));
  return at::arange(offset_, offset_ + local_shard_.numel(),
                    at::TensorOptions().dtype(at::kLong).device(local_shard_.device()))
      .div_(row_size, "floor");
}

TensorLeaf ParameterPart::placed(const at::Tensor& value, const std::string& whole_name) const {
  return {value.detach().reshape({-1}),
          {.kind = Placement::Kind::kSharded, .shard_name = whole_name, .offset = offset_, .global_shape = shape_}};
}

bool ParameterPart::is_of(const TensorLeaf& leaf) const {
  const at::IntArrayRef shape = shape_;
  if (leaf.saved != nullptr) return shape == at::IntArrayRef(leaf.saved->shape());
  return leaf.placement.kind == Placement::Kind::kSharded ? shape == at::IntArrayRef(leaf.placement.global_shape)
                                                          : shape == leaf.value.sizes();
}

at::Tensor ParameterPart::own_part(const TensorLeaf& leaf) const {
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
  if (leaf.saved != nullptr && local_shard_.is_contiguous())
    read_part_into(*leaf.saved, offset_, local_shard_.detach());
  else
    local_shard_.detach().copy_(own_part(leaf));
}

}  // namespace levin
