#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

/// Two traces of one function, with different numbers of rows.
struct TracePair {
  torch::jit::Graph& graph;
  torch::jit::Graph& other;
  int64_t rows;        ///< of the first
  int64_t other_rows;  ///< of the second
  size_t input;        ///< index of the graphs' input whose first size is the number of rows
};

/// Makes the first graph one for any number of rows: a constant that grows with the rows becomes a size of the input.
/// Returns what it could not free, in words; the graph is of no use then.
std::vector<std::string> free_batch_size(const TracePair& traces);

}  // namespace levin
