#pragma once

#include <levin/core/base/state.h>

namespace levin {

/// The tree with copies of its tensors in the host's memory, so that the originals may change: page-locked where they
/// come from a GPU, so that all of them are on their way at once. Handles of saved tensors are shared.
State host_copy(const State& tree);

}  // namespace levin
