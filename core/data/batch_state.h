#pragma once

#include <levin/core/base/state.h>
#include <levin/core/data/batch.h>

namespace levin {

/// A batch as a state: its names and tensors, in their order.
State to_state(const Batch& batch);
/// What to_state was given.
Batch to_batch(const State& state);

}  // namespace levin
