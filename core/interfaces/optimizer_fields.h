#pragma once

#include <levin/core/base/state.h>

#include <functional>
#include <string>

namespace levin {

/// Returns a tree of optim::optimizer_state_dict, or any whose `parameters` hold, by name, a map of fields for each, in
/// which `change` has replaced the fields of each parameter.
State with_parameters(const State& state,
                      const std::function<State(const std::string& name, const State& fields)>& change);
/// Returns fields of a parameter, lists and mappings in them included, in which `change` has replaced the tensors.
/// Counters of steps stay as they are.
State with_fields(const State& fields, const std::function<State(const TensorLeaf&)>& change);

}  // namespace levin
