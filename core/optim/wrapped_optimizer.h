#pragma once

#include <levin/core/optim/has_parameter_states.h>
#include <levin/core/optim/optimizer_capabilities.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string_view>

namespace levin::optim {

/// Base of optimizers that do something around the steps of another. The parameter groups, and with them the learning
/// rates that schedules change, are this one's; the other gets them for the length of a call.
class WrappedOptimizer : public torch::optim::Optimizer, public DeclaresCapabilities, public HasParameterStates {
 public:
  /// The other one's state of each parameter, and what this one keeps beside it.
  State parameter_states(const ParameterNames& names) const override;
  State held_states(const ParameterNames& names) const override;
  void load_parameter_states(const ParameterNames& names, const State& states) override;

  /// Throws levin::Error that names `optimizer_state_dict`, since LibTorch's archives key state by address.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  /// Takes the groups of `base`, which nobody else may step from then on. Throws levin::Error for nullptr, for one that
  /// is not of levin::optim and for one that evaluates the loss itself. `name` is for messages.
  WrappedOptimizer(std::string_view name, std::shared_ptr<torch::optim::Optimizer> base);

  OptimizerCapabilities base_capabilities() const { return capabilities_of(*base_); }
  /// A step of the other optimizer with the gradients there are.
  void step_base();

  /// Adds to the state of a parameter what this one keeps; `saved` is a mapping.
  virtual void save_own(const at::Tensor& /*param*/, State& /*saved*/) const {}
  /// Takes it back out of `saved`; nullptr when there is no state of the parameter.
  virtual void load_own(const at::Tensor& /*param*/, State* /*saved*/) {}

 private:
  class Lent;

  State with_own(const ParameterNames& names, State (HasParameterStates::*of_base)(const ParameterNames&) const) const;

  std::shared_ptr<torch::optim::Optimizer> base_;
};

}  // namespace levin::optim
