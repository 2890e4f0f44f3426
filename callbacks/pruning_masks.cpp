#include <levin/callbacks/pruning_masks.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>
#include <levin/core/comm/collective.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
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
    at::Tensor pruned = at::empty(parameter.value.sizes(), parameter.value.options().dtype(at::kBool));
    copy_in_place(pruned, found->as_tensor(), parameter.name);
    parameter.kept = at::ones_like(parameter.value).masked_fill_(pruned, 0);
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
    if (!parameter.kept.defined()) parameter.kept = at::ones_like(parameter.value);
  if (rule.global) return prune_together(rule, 0, parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) prune_together(rule, i, 1);
}

void PruningMasks::prune_together(const Rule& rule, size_t first, size_t count) {
  std::vector<at::Tensor> scores;
  std::vector<at::Tensor> pruned_before;
  for (size_t i = first; i < first + count; ++i) {
    const Parameter& parameter = parameters_[i];
    scores.push_back(importance(parameter.value, rule, i));
    const at::Tensor entries = parameter.kept == 0;
    pruned_before.push_back(rule.slices ? slices_of(entries, rule.dim).all(/*dim=*/1) : entries.flatten());
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
    at::Tensor& kept = parameters_[i].kept;
    const int64_t size = pruned_before[i - first].numel();
    std::vector<int64_t> shape = kept.sizes().vec();
    if (rule.slices) {
      shape.assign(shape.size(), 1);
      shape[static_cast<size_t>(rule.dim < 0 ? rule.dim + kept.dim() : rule.dim)] = size;
    }
    kept.masked_fill_(pruned.narrow(0, offset, size).view(shape), 0);
    offset += size;
  }
}

void PruningMasks::share(Collective& collective) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> masks;
  std::vector<std::unique_ptr<Work>> under_way;
  for (const auto& parameter : parameters_) {
    masks.push_back((parameter.kept == 0).contiguous());
    under_way.push_back(collective.broadcast(masks.back(), /*root=*/0));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    under_way[i]->wait();
    parameters_[i].kept.fill_(1).masked_fill_(masks[i], 0);
  }
}

void PruningMasks::apply() {
  if (empty()) return;
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> kept;
  for (const auto& parameter : parameters_) {
    values.push_back(parameter.value);
    kept.push_back(parameter.kept);
  }
  // A product: on CPUs masked_fill takes many times as long.
  at::_foreach_mul_(values, kept);
  at::_foreach_add_(values, 0);  // a negative value's zero is negative, and its average need not be: one zero for all
}

void PruningMasks::apply_to_gradients() {
  if (empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> kept;
  for (const auto& parameter : parameters_) {
    const at::Tensor& gradient = parameter.value.grad();
    if (!gradient.defined() || gradient.is_sparse()) continue;
    gradients.push_back(gradient);
    kept.push_back(parameter.kept);
  }
  if (!gradients.empty()) at::_foreach_mul_(gradients, kept);
}

at::Tensor PruningMasks::masked(const Parameter& parameter, const at::Tensor& tensor) {
  return tensor.detach() * parameter.kept.to(tensor.device()) + 0;
}

std::vector<int64_t> PruningMasks::count() const {
  std::vector<int64_t> counts;
  for (const auto& parameter : parameters_)
    counts.push_back(parameter.kept.defined() ? (parameter.kept == 0).sum().item<int64_t>() : 0);
  return counts;
}

State PruningMasks::state_dict() const {
  if (empty()) return {};
  State state = State::map();
  for (const auto& parameter : parameters_) state[parameter.name] = parameter.kept == 0;
  return state;
}

void PruningMasks::load(const State& state) { loaded_ = state; }

}  // namespace levin
