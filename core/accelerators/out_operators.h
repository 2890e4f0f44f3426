#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace levin {

/// Returns the form of an operator that writes its results into tensors given after its arguments, where that has a
/// kernel of its own for the CPU; most others make new tensors and copy them.
std::optional<c10::OperatorHandle> find_out_operator(const c10::OperatorHandle& op);

}  // namespace levin
