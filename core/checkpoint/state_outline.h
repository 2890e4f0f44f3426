#pragma once

#include <levin/core/base/state.h>

/// What rank 0, which writes the tree of a checkpoint, must know of parts of it that other ranks hold.
namespace levin {

/// Returns a tree without the elements of sharded tensors, whose shards have none. Other tensors are left out, but for
/// those of one element without dimensions.
State outline_of(const State& tree);

/// Adds keys of mappings that `tree` lacks.
void add_missing(State& tree, const State& outline);

}  // namespace levin
