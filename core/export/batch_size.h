#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// A size that differs between two traces.
struct FreeSize {
  int64_t rows;        ///< in the first
  int64_t other_rows;  ///< in the second
  size_t input;        ///< index of the graphs' input whose first size it is
};

/// Two traces of one function, with different numbers of rows.
struct TracePair {
  torch::jit::Graph& graph;
  torch::jit::Graph& other;
  std::vector<FreeSize> sizes;
};

/// Makes the first graph one for any number of rows: a constant that is a multiple of a size in both traces becomes one
/// of the input's, and the types of values leave the sizes open that differ between the traces. Returns what it could
/// not free, in words; the graph is of no use then.
std::vector<std::string> free_batch_size(const TracePair& traces);

}  // namespace levin
