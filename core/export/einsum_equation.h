#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// An equation of einsum for those who know letters alone, and an arrow.
struct EinsumEquation {
  std::string text;  ///< empty where 52 letters are not enough
  /// Of each operand, dimensions to take out first: those of size 1 that stand for any size.
  std::vector<std::vector<int64_t>> squeezed;
};

/// What LibTorch makes of an equation: a letter for each dimension behind an ellipsis, and the result's part. `sizes`:
/// those of the operands, which LibTorch has accepted with it; -1 for one that is not known.
EinsumEquation explicit_einsum(std::string_view equation, const std::vector<std::vector<int64_t>>& sizes);

}  // namespace levin
