#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace levin {

class Collective;

namespace detail {

/// Arguments of scaled_dot_product_attention.
struct ContextAttention {
  at::Tensor query;  ///< [N, heads, T / ranks, features], as key and value
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask = {};  ///< broadcasts to [N, heads, T, T]
  double dropout = 0;
  bool causal = false;
  std::optional<double> scale = {};
  bool grouped = false;
};

/// In backward: throws levin::Error where gradients are to have gradients.
void refuse_second_derivatives_of_context();

/// Runs attention over all positions of which each rank has a part, and returns that of this rank's queries: ranks
/// exchange parts of all heads for all positions of some heads, and back (Jacobs et al., "DeepSpeed Ulysses", 2023,
/// arXiv:2309.14509). It is computed by the kernel that one device takes, and the mask of dropout is that of one
/// device. Throws levin::Error where the heads, or those of keys, do not divide over the ranks. Collective.
at::Tensor attend_over_context(const ContextAttention& attention, const std::shared_ptr<Collective>& group);
}  // namespace detail
}  // namespace levin
