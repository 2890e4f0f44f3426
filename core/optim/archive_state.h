#pragma once

#include <levin/core/base/state.h>
#include <levin/core/optim/parameter_names.h>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace levin::optim {

/// Returns what `optimizer.save` writes, as a tree in which "@name" stands for the address of a parameter. LibTorch
/// keys optimizer state by address, which means nothing in another process.
State archived_state(const torch::optim::Optimizer& optimizer, const ParameterNames& names);

/// Hands a tree of `archived_state` to `optimizer.load`, in place of all state that it has.
void load_archived_state(torch::optim::Optimizer& optimizer, const ParameterNames& names, const State& state);

}  // namespace levin::optim
