#include <levin/strategies/tensor/tensor_model.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/linear_partition.h>
#include <levin/core/nn/move_to_device.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace levin {

TensorModel::TensorModel(Module& module, const std::vector<CutWeight>& weights, std::shared_ptr<Collective> group)
    : module_(module), group_(std::move(group)) {
  for (const CutWeight& weight : weights) cut(weight);
}

TensorModel::~TensorModel() {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  for (const Share& share : shares_) {
    const at::Tensor like = at::empty({}, share.tensor.options().requires_grad(false));
    if (share.is_weight) remove_weight_behaviours(share.tensor);
    replace_data(
        share.tensor,
        released_tensor(like.expand(share.cut.whole_shape(share.tensor.sizes())), share.tensor.device(),
                        fmt::format("[tensor] the weight '{}' is without values: a call that failed has left "
                                    "its shares with {} ranks; hint: give the next call a checkpoint, or make a "
                                    "new module",
                                    share.name, group_->world_size())));
  }
}

void TensorModel::cut(const CutWeight& weight) {
  const at::NoGradGuard no_grad;
  const auto take_share = [&](const std::string& name, const at::Tensor& tensor, int64_t dim, bool is_weight) {
    const DimensionCut cut(group_, dim, weight.rule.parts);
    replace_data(tensor, cut.part_of(tensor));
    tensor.mutable_grad() = at::Tensor();  // of the whole, from before
    shares_.push_back({name, tensor, cut, is_weight});
  };
  const bool is_row = weight.rule.cut == TensorCut::kRow;
  take_share(weight.name, weight.weight, is_row ? 1 : 0, /*is_weight=*/true);
  if (!is_row && weight.bias.defined()) take_share(weight.bias_name, weight.bias, 0, /*is_weight=*/false);
  add_weight_behaviour(weight.weight, weight.name,
                       is_row                                      ? make_row_behaviour(group_)
                       : weight.rule.cut == TensorCut::kVocabulary ? make_vocabulary_behaviour(group_)
                                                                   : make_column_behaviour(group_));
}

std::vector<ParallelModel::Entry> TensorModel::entries() const {
  std::unordered_map<const void*, const Share*> shares;
  for (const Share& share : shares_) shares[share.tensor.unsafeGetTensorImpl()] = &share;
  std::vector<ParallelModel::Entry> entries;
  for (const auto& [name, parameter] : named_unique_parameters(module_)) {
    const auto found = shares.find(parameter.unsafeGetTensorImpl());
    const bool is_copy = found == shares.end();
    entries.push_back({.name = name,
                       .parameter = parameter,
                       .part = is_copy ? ParameterPart(parameter, 0, parameter.sizes().vec())
                                       : ParameterPart(parameter, found->second->cut),
                       .is_copy = is_copy});
  }
  return entries;
}

void TensorModel::require_behaviours() const {
  for (const Share& share : shares_)
    if (share.is_weight && !has_weight_behaviours(share.tensor))
      throw Error("tensor",
                  fmt::format("the weight '{}', which is cut over {} ranks, was given other memory during the "
                              "call; hint: convert and move the module before it (Module::to, set_data)",
                              share.name, group_->world_size()));
}

void TensorModel::require_equal_gradients() const {
  constexpr double kRounding = 1e-2;  // of 16 bits
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> norms;
  for (const auto& [name, parameter, part, is_copy] : entries()) {
    if (!is_copy || !parameter.requires_grad()) continue;
    const at::Tensor gradient = gradient_values(parameter);
    names.push_back(name);
    norms.push_back(gradient.defined() && gradient.numel() > 0
                        ? at::linalg_vector_norm(gradient, 2).to(at::kDouble)
                        : at::zeros({}, parameter.options().dtype(at::kDouble).requires_grad(false)));
  }
  if (norms.empty()) return;
  const at::Tensor largest = at::stack(norms);
  const at::Tensor smallest = largest.clone();
  group_->all_reduce(largest, ReduceOp::kMax)->wait();
  group_->all_reduce(smallest, ReduceOp::kMin)->wait();
  const at::Tensor differ = (largest - smallest > kRounding * largest).cpu();
  for (size_t i = 0; i < names.size(); ++i)
    if (differ[static_cast<int64_t>(i)].item<bool>())
      throw Error("tensor",
                  fmt::format("the parameter '{}' is whole on each of {} ranks, and its gradient is another on "
                              "each; valid: outside of layers that are cut; hint: what is between a column "
                              "layer and a row layer must be without parameters, or be in the plan",
                              names[i], group_->world_size()));
}

std::shared_ptr<void> TensorModel::full_parameters(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const void*> wanted;
  for (const at::Tensor& parameter : module.parameters()) wanted.insert(parameter.unsafeGetTensorImpl());
  struct Replaced {
    at::Tensor tensor;
    at::Tensor share;  ///< keeps its behaviours
    DimensionCut cut;
  };
  const auto all = std::make_shared<std::vector<Replaced>>();
  for (const Share& share : shares_) {
    if (!wanted.contains(share.tensor.unsafeGetTensorImpl())) continue;
    all->push_back({share.tensor, share.tensor.detach(), share.cut});
    replace_data(share.tensor, share.cut.whole_of(share.tensor));
  }
  return std::shared_ptr<void>(all.get(), [all](void*) {
    const at::NoGradGuard no_gradients;
    for (const auto& [tensor, share, cut] : *all) {
      share.copy_(cut.part_of(tensor.detach()));
      replace_data(tensor, share);
    }
  });
}

void TensorModel::gather_full_parameters() {
  const at::NoGradGuard no_grad;
  for (const Share& share : std::exchange(shares_, {})) {
    if (share.is_weight) remove_weight_behaviours(share.tensor);
    replace_data(share.tensor, share.cut.whole_of(share.tensor));
    share.tensor.mutable_grad() = at::Tensor();
  }
}

}  // namespace levin
