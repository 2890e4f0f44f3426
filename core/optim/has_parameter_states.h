#pragma once

#include <levin/core/base/state.h>
#include <levin/core/optim/parameter_names.h>

namespace levin::optim {

/// An optimizer that gives and takes its state by parameter name itself, rather than through LibTorch's archives.
class HasParameterStates {
 public:
  virtual ~HasParameterStates() = default;

  /// The state of every parameter by name. The tensors are the optimizer's own, not copies, where it holds them as they
  /// are saved.
  virtual State parameter_states(const ParameterNames& names) const = 0;
  /// The optimizer's own tensors, for who asks how much memory they take.
  virtual State held_states(const ParameterNames& names) const { return parameter_states(names); }
  /// Loads such a state. The groups' options come first, because they say which tensors there are.
  virtual void load_parameter_states(const ParameterNames& names, const State& states) = 0;
};

}  // namespace levin::optim
