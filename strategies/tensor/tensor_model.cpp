#include <levin/strategies/tensor/tensor_model.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/base/released_storage.h>
#include <levin/core/base/seed.h>
#include <levin/core/checkpoint/state_bytes.h>
#include <levin/core/checkpoint/state_outline.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/optimizer_fields.h>
#include <levin/core/nn/adapter_layer.h>
#include <levin/core/nn/linear_partition.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/core/nn/sequence_units.h>
#include <levin/core/nn/weight_behaviour.h>
#include <levin/core/optim/optimizer_capabilities.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <unordered_set>
#include <utility>

namespace levin {
namespace {

at::IntArrayRef shape_of_whole(const TensorLeaf& leaf) {
  if (leaf.saved != nullptr) return leaf.saved->shape();
  return leaf.placement.kind == Placement::Kind::kSharded ? at::IntArrayRef(leaf.placement.global_shape)
                                                          : leaf.value.sizes();
}

/// Where the local shard begins in the share.
int64_t offset_of(const ParameterPart& part) { return part.placed(part.local_shard(), "").placement.offset; }

}  // namespace

TensorModel::TensorModel(Module& module, const std::vector<CutWeight>& weights, std::shared_ptr<Collective> group,
                         bool sequence_parallel)
    : module_(module), group_(std::move(group)) {
  if (sequence_parallel) sequences_ = std::make_unique<SequenceUnits>(module, weights, group_);
  for (const CutWeight& weight : weights) cut(weight);
}

void TensorModel::join_adapters() {
  for (const auto& layer : std::exchange(adapted_, {})) {
    layer->set_cut(nullptr, /*by_row=*/false);
    layer->attach();
  }
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
  join_adapters();
}

void TensorModel::cut(const CutWeight& weight) {
  std::shared_ptr<detail::AdapterLayer> adapters;
  for (const auto& layer : detail::adapter_layers(module_))
    if (layer->weight().is_same(weight.weight)) adapters = layer;
  if (adapters != nullptr && weight.rule.cut == TensorCut::kVocabulary)
    throw Error("tensor",
                fmt::format("the weight '{}' has adapters, which are not cut by vocabulary; valid: adapters of layers "
                            "that are cut by column or row; hint: strategies that shard: {{shard: {}}}",
                            weight.name, group_->world_size()));
  const at::NoGradGuard no_grad;
  const auto take_share = [&](const std::string& name, const at::Tensor& tensor, int64_t dim, bool is_weight) {
    const DimensionCut cut(group_, dim, weight.rule.parts);
    // What an earlier call left without values gets them from a checkpoint.
    const at::Tensor whole =
        is_released(tensor) ? at::zeros(tensor.sizes(), tensor.options().requires_grad(false)) : tensor;
    replace_data(tensor, cut.part_of(whole));
    tensor.mutable_grad() = at::Tensor();  // of the whole, from before
    shares_.push_back({name, tensor, cut, is_weight, /*is_block=*/dim == 0 && weight.rule.parts == 1});
  };
  const bool is_row = weight.rule.cut == TensorCut::kRow;
  take_share(weight.name, weight.weight, is_row ? 1 : 0, /*is_weight=*/true);
  if (!is_row && weight.bias.defined()) take_share(weight.bias_name, weight.bias, 0, /*is_weight=*/false);
  if (adapters != nullptr) {
    for (const auto& [name, parameter] : named_unique_parameters(module_))
      for (const auto& [adapter, pair] : adapters->all())
        if (parameter.is_same(is_row ? pair->lora_A : pair->lora_B))
          take_share(name, parameter, is_row ? 1 : 0, /*is_weight=*/false);
    adapters->set_cut(group_, is_row);
    adapters->attach();  // outside of what cuts the weight
    adapted_.push_back(std::move(adapters));
  }
  add_weight_behaviour(weight.weight, weight.name, make_partition_behaviour(weight.rule.cut, group_));
}

const TensorModel::Share* TensorModel::find(const at::Tensor& parameter) const {
  const auto found = std::ranges::find_if(shares_, [&](const Share& share) { return share.tensor.is_same(parameter); });
  return found == shares_.end() ? nullptr : &*found;
}

std::vector<ParallelModel::Entry> TensorModel::entries() const {
  std::vector<ParallelModel::Entry> entries;
  for (const auto& [name, parameter] : named_unique_parameters(module_)) {
    const Share* const share = find(parameter);
    entries.push_back({.name = name,
                       .parameter = parameter,
                       .part = share == nullptr ? ParameterPart(parameter, 0, parameter.sizes().vec())
                                                : ParameterPart(parameter, share->cut),
                       .is_copy = share == nullptr && group_->rank() > 0});
  }
  return entries;
}

std::vector<ParallelModel::Entry> TensorModel::entries(std::vector<ParallelModel::Entry> of_shares) const {
  for (ParallelModel::Entry& entry : of_shares) {
    const Share* const share = entry.parameter.defined() ? find(entry.parameter) : nullptr;
    entry.is_copy = share == nullptr && group_->rank() > 0;
    if (share == nullptr) continue;
    // Shares of rows, or of fused projections, count as one after the other: each has rows of its own.
    if (entry.part.local_shard().is_same(share->tensor))
      entry.part = ParameterPart(share->tensor, share->cut);
    else if (share->cut.dim() == 0 || !share->is_saved)
      entry.part = ParameterPart(entry.part.local_shard(), begin_of(*share) + offset_of(entry.part),
                                 share->cut.whole_shape(share->tensor.sizes()));
  }
  return of_shares;
}

const TensorModel::Share* TensorModel::find(const std::string& name) const {
  const auto found = std::ranges::find(shares_, name, &Share::name);
  return found == shares_.end() ? nullptr : &*found;
}

void TensorModel::save_only(const std::function<bool(const at::Tensor& parameter)>& is_saved) {
  for (Share& share : shares_) share.is_saved = is_saved(share.tensor);
}

// ---- State

at::Tensor TensorModel::whole_share(const Share& share, const at::Tensor& elements, int64_t offset,
                                    Collective& share_group) {
  const at::Tensor whole =
      at::zeros(share.tensor.sizes(), elements.options().device(share.tensor.device()).requires_grad(false));
  whole.view({-1}).narrow(0, offset, elements.numel()).copy_(elements);
  // Each byte comes from one rank, and no bit of it is lost.
  at::Tensor bytes = whole.view({-1}).view(at::kByte);
  share_group.all_reduce(bytes, ReduceOp::kMax)->wait();
  return whole;
}

State TensorModel::place_share(const Share& share, const TensorLeaf& placed, Collective& share_group) const {
  const int64_t begin = begin_of(share);
  const int64_t in_share = placed.value.numel() == 0 ? 0 : placed.placement.offset - (share.cut.dim() == 0 ? begin : 0);
  const at::Tensor whole = share.cut.whole_of(whole_share(share, placed.value, in_share, share_group));
  TensorLeaf leaf = placed;
  // Files have elements in their flat order: each rank writes as many of them as it holds.
  leaf.placement.offset = begin + in_share;
  leaf.placement.global_shape = whole.sizes().vec();
  leaf.value = whole.view({-1}).narrow(0, leaf.placement.offset, placed.value.numel()).clone();
  return State(std::move(leaf));
}

State TensorModel::own_share(const Share& share, const TensorLeaf& saved, Collective& share_group) const {
  const std::vector<int64_t> shape = share.cut.whole_shape(share.tensor.sizes());
  const int64_t begin = begin_of(share);
  const at::Tensor whole =
      saved.saved != nullptr ? saved.saved->read_whole()
      : saved.placement.kind == Placement::Kind::kSharded
          ? gather_flat(*group_, whole_share(share, saved.value, saved.placement.offset - begin, share_group))
                .view(shape)
          : saved.value;
  const at::Tensor own = share.cut.part_of(whole);
  if (share.cut.dim() != 0) return State(own);
  at::Tensor in_order = at::empty(shape, own.options());
  in_order.view({-1}).narrow(0, begin, own.numel()).copy_(own.view({-1}));
  return State(in_order);
}

State TensorModel::place_shares(const State& placed, Collective& share_group) const {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  const std::function<State(const State&)> place = [&](const State& state) {
    if (state.is_map()) {
      State map = State::map();
      for (const auto& [key, value] : state.as_map()) map[key] = place(value);
      return map;
    }
    if (state.is_list()) {
      State list = State::list();
      for (const State& item : state.as_list()) list.push_back(place(item));
      return list;
    }
    if (!state.is_tensor() || state.as_leaf().placement.kind != Placement::Kind::kSharded) return state;
    const TensorLeaf& leaf = state.as_leaf();
    const Share* const share = find(leaf.placement.shard_name);
    if (share == nullptr || share->is_block || !share->is_saved) return state;
    const at::IntArrayRef shape = leaf.placement.global_shape;
    const bool is_part = share->cut.dim() == 0 ? shape == at::IntArrayRef(share->cut.whole_shape(share->tensor.sizes()))
                                               : shape == share->tensor.sizes();
    return is_part ? place_share(*share, leaf, share_group) : state;
  };
  // A rank may lack what it holds no elements of: with what the others have, all ranks place the same tensors.
  State complete = placed;
  for (const std::string& bytes : share_group.gather_bytes(state_to_bytes(outline_of(placed))))
    add_missing(complete, state_from_bytes(bytes));
  return place(complete);
}

State TensorModel::own_shares(const State& saved, Collective& share_group) const {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  State own = saved;
  for (const Share& share : shares_) {
    const State* const found = saved.find(share.name);
    if (found == nullptr || !found->is_tensor()) continue;
    const TensorLeaf& leaf = found->as_leaf();
    if (!is_whole(share, leaf))
      throw Error("checkpoint",
                  fmt::format("the saved parameter '{}' is of another shape; got {}; valid: {}; hint: build the module "
                              "with the options that it was saved with",
                              share.name, c10::str(shape_of_whole(leaf)),
                              c10::str(at::IntArrayRef(share.cut.whole_shape(share.tensor.sizes())))));
    if (!share.is_block && share.is_saved) own[share.name] = own_share(share, leaf, share_group);
  }
  return own;
}

State TensorModel::own_optimizer_shares(const State& saved, Collective& share_group) const {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  return with_parameters(saved, [&](const std::string& name, const State& fields) {
    const Share* const share = find(name);
    if (share == nullptr || share->is_block || !share->is_saved) return fields;
    return with_fields(fields, [&](const TensorLeaf& leaf) {
      return is_whole(*share, leaf) ? own_share(*share, leaf, share_group) : State(leaf);
    });
  });
}

bool TensorModel::is_whole(const Share& share, const TensorLeaf& leaf) {
  return shape_of_whole(leaf) == at::IntArrayRef(share.cut.whole_shape(share.tensor.sizes()));
}

void TensorModel::require_behaviours() const {
  for (const Share& share : shares_)
    if (share.is_weight && !is_released(share.tensor) && !has_weight_behaviours(share.tensor))
      throw Error("tensor",
                  fmt::format("the weight '{}', which is cut over {} ranks, was given other memory during the "
                              "call; hint: convert and move the module before it (Module::to, set_data)",
                              share.name, group_->world_size()));
}

void TensorModel::require_equal_gradients(const ParallelModel& parts) const {
  constexpr double kRounding = 1e-2;  // of 16 bits
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> norms;
  for (const auto& [name, parameter] : named_unique_parameters(module_)) {
    if (!parameter.requires_grad() || find(parameter) != nullptr) continue;
    const at::Tensor gradient = gradient_values(parts.local_shard(parameter));
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
    if (!wanted.contains(share.tensor.unsafeGetTensorImpl()) || is_released(share.tensor)) continue;
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

at::Tensor TensorModel::whole_of(const at::Tensor& parameter, const at::Tensor& values) const {
  const Share* const share = find(parameter);
  return share == nullptr ? values : share->cut.whole_of(values);
}

void TensorModel::gather_full_parameters() {
  sequences_.reset();
  const at::NoGradGuard no_grad;
  for (const Share& share : std::exchange(shares_, {})) {
    if (share.is_weight) remove_weight_behaviours(share.tensor);
    replace_data(share.tensor, share.cut.whole_of(share.tensor));
    share.tensor.mutable_grad() = at::Tensor();
  }
  join_adapters();
}

namespace {

constexpr const char* kPlanOption = "strategy.tensor.plan";

TensorPlan rules_of(const std::map<std::string, std::string>& plan) {
  static const std::map<std::string, TensorCut> kCuts = {{"column", TensorCut::kColumn},
                                                         {"row", TensorCut::kRow},
                                                         {"vocabulary", TensorCut::kVocabulary},
                                                         {"whole", TensorCut::kWhole}};
  TensorPlan rules;
  for (const auto& [pattern, cut] : plan) {
    const auto found = kCuts.find(cut);
    if (found == kCuts.end())
      throw ConfigError(
          fmt::format("{}: '{}' is cut by '{}'; valid: column, row, vocabulary, whole", kPlanOption, pattern, cut));
    rules.push_back({.pattern = pattern, .cut = found->second});
  }
  return rules;
}

}  // namespace

std::unique_ptr<TensorModel> cut_layers(Module& module, const std::map<std::string, std::string>& plan,
                                        std::shared_ptr<Collective> group, const at::Device& device,
                                        bool sequence_parallel) {
  for (const auto& layer : detail::adapter_layers(module))
    if (layer->quantized() != nullptr)
      throw ConfigError(
          fmt::format("adapters.quantize: the weight '{}.weight' is held in {}, which is not cut over "
                      "ranks; hint: {{shard: {}}}, or weights as they are",
                      layer->path(), layer->quantized()->format(), group->world_size()));
  auto model = std::make_unique<TensorModel>(
      module, weights_to_cut(module, group->world_size(), rules_of(plan), kPlanOption), group, sequence_parallel);
  const std::string state = group->rank() == 0 ? state_to_bytes(capture_rng_state(device)) : "";
  restore_rng_state(state_from_bytes(group->broadcast_bytes(state, 0)), device);
  return model;
}

void require_element_wise(const torch::optim::Optimizer& optimizer, const std::string& strategy) {
  if (!optim::capabilities_of(optimizer).element_wise)
    throw ConfigError(
        fmt::format("strategy '{}' does not work with an optimizer that needs whole matrices, or all "
                    "parameters together, or does not say that it does not, where layers are cut; valid: adamw, adam, "
                    "sgd and others that step each element by itself",
                    strategy));
}

}  // namespace levin
