#include <levin/core/comm/dimension_cut.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <utility>

namespace levin {

DimensionCut::DimensionCut(std::shared_ptr<Collective> group, int64_t dim, int64_t pieces)
    : group_(std::move(group)), dim_(dim), pieces_(pieces) {
  LEVIN_CHECK(group_ != nullptr && dim_ >= 0 && pieces_ > 0, "a dimension in pieces is cut over a group");
}

std::vector<int64_t> DimensionCut::whole_shape(at::IntArrayRef part) const {
  std::vector<int64_t> shape = part.vec();
  shape.at(static_cast<size_t>(dim_)) *= group_->world_size();
  return shape;
}

at::Tensor DimensionCut::part_of(const at::Tensor& whole) const {
  const int64_t ranks = group_->world_size();
  LEVIN_CHECK(whole.size(dim_) % (pieces_ * ranks) == 0, "the ranks have equal shares of each piece");
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  return whole.detach()
      .unflatten(dim_, {pieces_, ranks, -1})
      .select(dim_ + 1, group_->rank())
      .flatten(dim_, dim_ + 1)
      .clone(at::MemoryFormat::Contiguous);
}

at::Tensor DimensionCut::whole_of(const at::Tensor& part) const {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  std::vector<int64_t> shape = part.sizes().vec();
  shape.insert(shape.begin(), group_->world_size());
  return gather_flat(*group_, part)
      .view(shape)
      .unflatten(dim_ + 1, {pieces_, -1})
      .movedim(0, dim_ + 1)
      .flatten(dim_, dim_ + 2)
      .contiguous();
}

at::Tensor gather_flat(Collective& group, const at::Tensor& tensor) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  const at::Tensor own = tensor.detach().reshape({-1});
  at::Tensor all = at::empty({group.world_size() * own.numel()}, own.options().requires_grad(false));
  group.all_gather(all, own)->wait();
  return all;
}

}  // namespace levin
