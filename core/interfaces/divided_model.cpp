#include <levin/core/interfaces/divided_model.h>

#include <levin/core/base/error.h>
#include <levin/core/base/expanded_tensor.h>
#include <levin/core/interchange/weight_plan.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/optim/gradient_clipping.h>

#include <fmt/format.h>

#include <set>

namespace levin {

optim::ParameterNames DividedModel::parameter_names(const Module& module) { return optim::ParameterNames(module); }

void DividedModel::clip_adaptively(const std::vector<at::Tensor>& parameters, double ratio) {
  optim::clip_adaptively(parameters, ratio);
}

State DividedModel::module_state(Module& module) {
  State state = State::map();
  for (const auto& [name, tensor] : named_tensors(module)) state[name] = tensor.detach();
  return state;
}

void DividedModel::load_module_state(Module& module, const State& state) { load_named_tensors(module, state); }

namespace {

/// Of the whole tensor.
at::IntArrayRef shape_of(const TensorLeaf& leaf) {
  if (leaf.saved != nullptr) return leaf.saved->shape();
  return leaf.placement.kind == Placement::Kind::kSharded ? at::IntArrayRef(leaf.placement.global_shape)
                                                          : leaf.value.sizes();
}

}  // namespace

void check_named_tensors(const Module& module, const State& state) {
  std::set<std::string, std::less<>> unused;
  for (const auto& [name, value] : state.as_map()) unused.insert(name);
  auto tensors = named_tensors(module);
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : tensors) {
    if (state.contains(name))
      unused.erase(name);
    else
      missing.push_back(name);
  }
  if (!missing.empty() || !unused.empty()) {
    const std::vector<std::string> extra(unused.begin(), unused.end());
    std::string what;
    if (!missing.empty()) what += fmt::format("; not in the checkpoint: {}", join(missing));
    if (!extra.empty()) what += fmt::format("; not in the module: {}", join(extra));
    throw Error("checkpoint",
                fmt::format("the checkpoint is of another model{}; hint: build the module with the options "
                            "that it was saved with (levin-checkpoint show prints them)",
                            what));
  }
  for (const auto& [name, tensor] : tensors) {
    const at::IntArrayRef saved = shape_of(state.at(name).as_leaf());
    if (saved != tensor.sizes())
      throw Error("checkpoint",
                  fmt::format("'{}' has another shape; got {} in the checkpoint; valid: {} as in the module; "
                              "hint: build the module with the options that it was saved with",
                              name, c10::str(saved), c10::str(tensor.sizes())));
  }
}

void load_named_tensors(Module& module, const State& state) {
  // Before the first tensor changes, so that a refused checkpoint leaves the module as it was.
  check_named_tensors(module, state);
  auto tensors = named_tensors(module);
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
