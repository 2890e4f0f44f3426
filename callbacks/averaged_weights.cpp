#include <levin/callbacks/averaged_weights.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/strategy.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <utility>

namespace levin {
void AveragedWeights::reset() { *this = AveragedWeights(); }

void AveragedWeights::bind(Module& module, Strategy& strategy) {
  strategy_ = &strategy;
  names_.clear();
  parameters_.clear();
  beside_.clear();
  for (auto& [name, parameter] : named_unique_parameters(module)) {
    if (!parameter.is_floating_point()) continue;
    names_.push_back(name);
    parameters_.push_back(strategy.divided_model().local_shard(parameter));
  }
  const State loaded = strategy.divided_model().own_optimizer_state(std::exchange(loaded_, {}));
  if (loaded.is_null()) return;
  for (size_t i = 0; i < names_.size(); ++i) {
    const State* found = loaded.at("parameters").find(names_[i]);
    if (found == nullptr)
      throw Error("checkpoint", fmt::format("the averaged weights lack the parameter '{}'; hint: they were saved with "
                                            "another model",
                                            names_[i]));
    beside_.push_back(at::empty_like(parameters_[i].detach()));
    copy_in_place(beside_.back(), found->at("value").as_tensor(), names_[i]);
  }
}

void AveragedWeights::update(double share) {
  LEVIN_CHECK(!in_module_ && !parameters_.empty(), "the average is updated from training weights");
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  if (beside_.empty()) {
    for (const auto& parameter : parameters_) beside_.push_back(parameter.detach().clone());
    return;
  }
  at::_foreach_lerp_(beside_, parameters_, share);
}

void AveragedWeights::exchange() {
  if (beside_.empty()) return;
  LEVIN_CHECK(beside_.size() == parameters_.size(), "averaged weights are exchanged with a module that was bound");
  // The module's tensors keep their addresses: optimizers, reduction buckets and replicas refer to them.
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < beside_.size(); ++i) {
    const at::Tensor former = parameters_[i].detach().clone();
    parameters_[i].copy_(beside_[i]);
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
