#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace levin::nn {

/// Which keys each query attends to by where they are.
struct AttentionReach {
  bool causal = true;          ///< none behind the query
  int64_t sliding_window = 0;  ///< of causal attention: the last so many, itself included; 0: all
};

/// Returns a mask of bools, true where a query attends to a key: [T, S] of positions [T] and [S], [N, 1, T, S] of
/// positions [N, T] and [N, S]. Keys at −1 are padding. No document is told from another.
at::Tensor reach_mask(const at::Tensor& query_positions, const at::Tensor& key_positions, const AttentionReach& reach);

/// Returns such a mask for tokens that attend to each other, [N, 1, T, T] of positions [N, T]: inside of a document
/// alone, as AttentionInputs says. Padding attends to itself, so that no row is empty.
at::Tensor self_mask(const at::Tensor& positions, const AttentionReach& reach);

/// Returns a mask that lets through what both let through; either may be undefined. Bools or numbers to be added.
at::Tensor both_masks(const at::Tensor& a, const at::Tensor& b);

}  // namespace levin::nn
