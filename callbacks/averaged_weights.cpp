#include <levin/callbacks/averaged_weights.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/independent_steps.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace levin {
void AveragedWeights::reset() { *this = AveragedWeights(); }

void AveragedWeights::bind(Module& module, Strategy& strategy, const Settings& settings) {
  if (find_independent_steps(strategy) != nullptr)
    throw ConfigError(fmt::format(
        "averages of weights do not work with strategy '{}' in mode async, whose workers have other weights "
        "than each other within an epoch; valid: mode sync",
        strategy.name()));
  if (has_local_weights(strategy))
    throw ConfigError(
        "averages of weights do not work with sync: local_sgd or diloco, whose ranks have other weights than each "
        "other between two exchanges; valid: sync: gradients; hint: exchanges are averages themselves");
  strategy_ = &strategy;
  offload_ = settings.offload;
  names_.clear();
  live_.clear();
  beside_.clear();
  std::unordered_set<const c10::TensorImpl*> parameters;
  for (const auto& parameter : module.parameters()) parameters.insert(parameter.unsafeGetTensorImpl());
  for (auto& [name, tensor] : named_tensors(module)) {
    const bool is_parameter = parameters.contains(tensor.unsafeGetTensorImpl());
    if (!tensor.is_floating_point() || !(is_parameter || settings.use_buffers)) continue;
    names_.push_back(name);
    live_.push_back(is_parameter ? strategy.divided_model().parallel_model().local_shard(tensor) : tensor);
  }
  const State loaded = strategy.divided_model().own_optimizer_state(std::exchange(loaded_, {}));
  if (loaded.is_null()) return;
  for (size_t i = 0; i < names_.size(); ++i) {
    const State* found = loaded.at("parameters").find(names_[i]);
    if (found == nullptr)
      throw Error("checkpoint",
                  fmt::format("the averaged weights lack '{}'; hint: they were saved with another model, or "
                              "another use_buffers",
                              names_[i]));
    // Not empty_like, which a strategy that divides layers refuses for a part.
    beside_.push_back(at::empty_strided(live_[i].sizes(), live_[i].strides(),
                                        live_[i].options().device(device_beside(live_[i])).requires_grad(false)));
    copy_in_place(beside_.back(), found->at("value").as_tensor(), names_[i]);
  }
  for (const auto& [name, value] : loaded.at("parameters").as_map())
    if (std::find(names_.begin(), names_.end(), name) == names_.end())
      throw Error("checkpoint",
                  fmt::format("the averaged weights have '{}', which is not averaged; hint: they were saved "
                              "with another model, or another use_buffers",
                              name));
}

void AveragedWeights::update(double share) {
  LEVIN_CHECK(!in_module_ && !live_.empty(), "the average is updated from training weights");
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  if (beside_.empty()) {
    for (const auto& live : live_)
      beside_.push_back(live.detach().to(device_beside(live), live.scalar_type(), /*non_blocking=*/false,
                                         /*copy=*/true));
    return;
  }
  if (!offload_) return at::_foreach_lerp_(beside_, live_, share);
  // One at a time: the host need not have room for all of them twice.
  for (size_t i = 0; i < live_.size(); ++i) beside_[i].lerp_(live_[i].detach().to(at::kCPU), share);
}

void AveragedWeights::exchange() {
  if (beside_.empty()) return;
  LEVIN_CHECK(beside_.size() == live_.size(), "averaged weights are exchanged with a module that was bound");
  // The module's tensors keep their addresses: optimizers, reduction buckets and replicas refer to them.
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < beside_.size(); ++i) {
    const at::Tensor former = live_[i].detach().clone();
    live_[i].copy_(beside_[i]);
    beside_[i].copy_(former);
  }
  in_module_ = !in_module_;
  strategy_->divided_model().shards_changed();
}

State AveragedWeights::placed(const std::vector<at::Tensor>& tensors) const {
  State parameters = State::map();
  for (size_t i = 0; i < tensors.size(); ++i) {
    State& fields = parameters[names_[i]] = State::map();
    fields["value"] = tensors[i].detach();
  }
  State state = State::map();
  state["parameters"] = std::move(parameters);
  return strategy_->divided_model().place_optimizer_state(std::move(state));
}

void AveragedWeights::load(const State& beside, bool in_module) {
  reset();
  if (beside.at("parameters").as_map().empty()) return;
  loaded_ = beside;
  in_module_ = in_module;
}

}  // namespace levin
