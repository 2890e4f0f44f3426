#pragma once

#include <levin/core/base/state.h>
#include <levin/core/data/batch.h>

namespace levin {

/// Returns a batch's names, tensors and texts, in their order, as a state.
State to_state(const Batch& batch);
/// Returns the batch of a state that to_state gave.
Batch to_batch(const State& state);

}  // namespace levin
