#include <levin/callbacks/pruning_masks.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/comm/collective.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

namespace levin {
namespace {

/// The slices of a tensor, as rows.
at::Tensor slices_of(const at::Tensor& tensor, int64_t dim) { return tensor.movedim(dim, 0).flatten(/*start_dim=*/1); }

/// How much each entry, or slice, of a parameter matters.
at::Tensor importance(const at::Tensor& value, const PruningMasks::Rule& rule, size_t index) {
  const int64_t units = rule.slices ? value.size(rule.dim) : value.numel();
  if (rule.random) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(mix_seed(rule.seed, index));
    return at::rand({units}, generator, at::TensorOptions(at::kDouble)).to(value.device());
  }
  // In 16 bits norms overflow.
  const at::Tensor precise = value.detach().to(at::promote_types(value.scalar_type(), at::kFloat));
  if (!rule.slices) return precise.abs().flatten();
  return at::linalg_vector_norm(slices_of(precise, rule.dim), rule.norm, at::IntArrayRef{1});
}

}  // namespace

void PruningMasks::reset() { *this = PruningMasks(); }

void PruningMasks::bind(std::vector<std::pair<std::string, at::Tensor>> parameters) {
  parameters_.clear();
  for (auto& [name, value] : parameters) parameters_.push_back({.name = std::move(name), .value = std::move(value)});
  const State loaded = std::exchange(loaded_, {});
  if (loaded.is_null()) return;
  for (auto& parameter : parameters_) {
    const State* found = loaded.find(parameter.name);
    if (found == nullptr)
      throw Error("checkpoint", fmt::format("the masks of pruning lack '{}'; hint: they were saved with other "
                                            "parameters_to_prune, or another model",
                                            parameter.name));
    parameter.pruned = at::zeros(parameter.value.sizes(), parameter.value.options().dtype(at::kBool));
    copy_in_place(parameter.pruned, found->as_tensor(), parameter.name);
  }
  for (const auto& [name, mask] : loaded.as_map())
    if (std::none_of(parameters_.begin(), parameters_.end(),
                     [&name = name](const Parameter& parameter) { return parameter.name == name; }))
      throw Error("checkpoint", fmt::format("the masks of pruning have '{}', which is not pruned now; hint: they were "
                                            "saved with other parameters_to_prune, or another model",
                                            name));
}

void PruningMasks::prune(const Rule& rule) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : parameters_)
    if (!parameter.pruned.defined())
      parameter.pruned = at::zeros(parameter.value.sizes(), parameter.value.options().dtype(at::kBool));
  if (rule.global) return prune_together(rule, 0, parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) prune_together(rule, i, 1);
}

void PruningMasks::prune_together(const Rule& rule, size_t first, size_t count) {
  std::vector<at::Tensor> scores;
  std::vector<at::Tensor> pruned_before;
  for (size_t i = first; i < first + count; ++i) {
    const Parameter& parameter = parameters_[i];
    scores.push_back(importance(parameter.value, rule, i));
    pruned_before.push_back(rule.slices ? slices_of(parameter.pruned, rule.dim).all(/*dim=*/1)
                                        : parameter.pruned.flatten());
  }
  const at::Tensor pruned = at::cat(pruned_before);
  const auto units = static_cast<double>(pruned.numel());
  const auto already = static_cast<double>(pruned.sum().item<int64_t>());
  // Rounds halves to even numbers, as Python does.
  const double more =
      rule.of_rest ? std::nearbyint(rule.amount * (units - already)) : std::nearbyint(rule.amount * units) - already;
  if (more < 1) return;
  const at::Tensor least = at::cat(scores).masked_fill_(pruned, std::numeric_limits<double>::infinity());
  const at::Tensor chosen =
      std::get<1>(least.topk(static_cast<int64_t>(more), /*dim=*/0, /*largest=*/false, /*sorted=*/false));
  pruned.index_fill_(0, chosen, true);
  int64_t offset = 0;
  for (size_t i = first; i < first + count; ++i) {
    at::Tensor& mask = parameters_[i].pruned;
    const int64_t size = pruned_before[i - first].numel();
    std::vector<int64_t> shape = mask.sizes().vec();
    if (rule.slices) {
      shape.assign(shape.size(), 1);
      shape[static_cast<size_t>(rule.dim < 0 ? rule.dim + mask.dim() : rule.dim)] = size;
    }
    mask.logical_or_(pruned.narrow(0, offset, size).view(shape));
    offset += size;
  }
}

void PruningMasks::share(Collective& collective) {
  std::vector<std::unique_ptr<Work>> under_way;
  for (const auto& parameter : parameters_) under_way.push_back(collective.broadcast(parameter.pruned, /*root=*/0));
  for (const auto& work : under_way) work->wait();
}

void PruningMasks::apply() {
  if (empty()) return;
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  // Not a product: a pruned entry is zero whatever an optimizer has made of it, without a sign.
  for (auto& parameter : parameters_) parameter.value.masked_fill_(parameter.pruned, 0);
}

void PruningMasks::apply_to_gradients() {
  if (empty()) return;
  const at::NoGradGuard no_grad;
  for (auto& parameter : parameters_) {
    at::Tensor& gradient = parameter.value.mutable_grad();
    if (gradient.defined() && !gradient.is_sparse()) gradient.masked_fill_(parameter.pruned, 0);
  }
}

at::Tensor PruningMasks::masked(const Parameter& parameter, const at::Tensor& tensor) {
  return tensor.detach().masked_fill(parameter.pruned.to(tensor.device()), 0);
}

std::vector<int64_t> PruningMasks::count() const {
  std::vector<int64_t> counts;
  for (const auto& parameter : parameters_)
    counts.push_back(parameter.pruned.defined() ? parameter.pruned.sum().item<int64_t>() : 0);
  return counts;
}

State PruningMasks::state_dict() const {
  if (empty()) return {};
  State state = State::map();
  for (const auto& parameter : parameters_) state[parameter.name] = parameter.pruned;
  return state;
}

void PruningMasks::load(const State& state) { loaded_ = state; }

}  // namespace levin
