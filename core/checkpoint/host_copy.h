#pragma once

#include <levin/core/base/state.h>

#include <cstdint>

namespace levin {

/// Bytes of page-locked memory that host_copy takes for its time, twice.
inline constexpr int64_t kStagingBytes = int64_t{32} << 20;

/// Copies a tree's tensors into the host's memory, so that the originals may change. Those of a GPU pass through two
/// page-locked buffers of this size: the next part is under way while the host empties the other. Handles of saved
/// tensors are shared.
State host_copy(const State& tree, int64_t staging_bytes = kStagingBytes);

}  // namespace levin
