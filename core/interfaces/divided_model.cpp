#include <levin/core/interfaces/divided_model.h>

#include <levin/core/base/error.h>
#include <levin/core/base/expanded_tensor.h>
#include <levin/core/interchange/weight_plan.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/saved_model.h>
#include <levin/core/optim/gradient_clipping.h>

namespace levin {

optim::ParameterNames DividedModel::parameter_names(const Module& module) { return optim::ParameterNames(module); }

void DividedModel::clip_adaptively(const std::vector<at::Tensor>& parameters, double ratio) {
  optim::clip_adaptively(parameters, ratio);
}

State DividedModel::module_state(Module& module) {
  State state = State::map();
  for (const auto& [name, tensor] : saved_tensors(module)) state[name] = tensor.detach();
  return state;
}

void DividedModel::load_module_state(Module& module, const State& state) { load_named_tensors(module, state); }

void check_named_tensors(const Module& module, const State& state) { check_saved_model(module, {.tensors = state}); }

void load_named_tensors(Module& module, const State& state) {
  // Before the first tensor changes, so that a refused checkpoint leaves the module as it was.
  check_named_tensors(module, state);
  auto tensors = saved_tensors(module);
  at::NoGradGuard no_grad;
  for (auto& [name, tensor] : tensors) {
    const TensorLeaf& leaf = state.at(name).as_leaf();
    if (leaf.saved != nullptr)
      read_into(*leaf.saved, tensor.detach());
    else
      copy_elements(leaf.value, tensor.detach());
  }
}

}  // namespace levin
