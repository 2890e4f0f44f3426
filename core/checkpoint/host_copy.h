#pragma once

#include <levin/core/base/state.h>

namespace levin {

/// Copies a tree's tensors into the host's memory, so that the originals may change; copies from a GPU are page-locked,
/// so that all are under way together. Handles of saved tensors are shared.
State host_copy(const State& tree);

}  // namespace levin
