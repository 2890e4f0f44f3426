#include <levin/callbacks/averaged_weights.h>

#include <levin/core/base/error.h>
#include <levin/core/interfaces/module.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>

namespace levin {
namespace {

State by_name(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
  State state = State::map();
  for (size_t i = 0; i < tensors.size(); ++i) state[names[i]] = tensors[i].detach();
  return state;
}

}  // namespace

void AveragedWeights::reset() { *this = AveragedWeights(); }

void AveragedWeights::bind(Module& module) {
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  for (auto& [name, parameter] : named_unique_parameters(module)) {
    if (!parameter.is_floating_point()) continue;
    names.push_back(name);
    parameters.push_back(parameter);
  }
  std::vector<at::Tensor> beside;
  if (!beside_.empty()) {
    for (size_t i = 0; i < names.size(); ++i) {
      const auto found = std::find(names_.begin(), names_.end(), names[i]);
      if (found == names_.end())
        throw Error("checkpoint", fmt::format("the averaged weights lack the parameter '{}'; hint: they were saved "
                                              "with another model",
                                              names[i]));
      beside.push_back(at::empty_like(parameters[i].detach()));
      copy_in_place(beside.back(), beside_[static_cast<size_t>(found - names_.begin())], names[i]);
    }
  }
  names_ = std::move(names);
  parameters_ = std::move(parameters);
  beside_ = std::move(beside);
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
}

State AveragedWeights::beside() const { return by_name(names_, beside_); }

State AveragedWeights::of_module() const { return by_name(names_, parameters_); }

void AveragedWeights::load(const State& beside, bool in_module) {
  reset();
  for (const auto& [name, tensor] : beside.as_map()) {
    names_.push_back(name);
    beside_.push_back(tensor.as_tensor().detach().clone());
  }
  in_module_ = in_module && !beside_.empty();
}

}  // namespace levin
