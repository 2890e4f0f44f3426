#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace levin {

/// A block of memory that is needed from one moment to another, both included.
struct ArenaBlock {
  size_t bytes = 0;
  size_t first = 0;
  size_t last = 0;
  size_t offset = 0;  ///< set by lay_out
};

/// Gives each block a place, aligned as LibTorch aligns tensors, so that blocks needed at the same moment do not
/// overlap. Returns the bytes that all need together. The largest blocks are placed first, each as low as it fits.
size_t lay_out(std::vector<ArenaBlock>& blocks);

}  // namespace levin
