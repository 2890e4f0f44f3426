#pragma once

#include <levin/core/base/state.h>
#include <levin/core/optim/parameter_names.h>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace levin::optim {

/// Returns the state of any optimizer, by parameter name: groups with their learning rates and options, and what the
/// optimizer keeps for each parameter.
///
/// Levin's optimizers give their own tensors, not copies. One that is a levin::Stateful as well gives what its
/// `state_dict` says. All others, LibTorch's among them, are asked through `save`, in copies; throws levin::Error for
/// one that has state but saves none. A parameter without elements has no state, such as one of which a strategy gives
/// this rank nothing.
State optimizer_state_dict(const torch::optim::Optimizer& optimizer, const ParameterNames& names);

/// Loads such a state, after which training goes on bit by bit as if it had not stopped. Throws levin::Error when the
/// state is of another kind of optimizer, of other parameter groups, or does not fit a parameter.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const ParameterNames& names, const State& state);

}  // namespace levin::optim
