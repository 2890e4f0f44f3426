#include <levin/core/nn/transformer/attention_mask.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <utility>

namespace levin::nn {

at::Tensor reach_mask(const at::Tensor& query_positions, const at::Tensor& key_positions, const AttentionReach& reach) {
  at::Tensor queries = query_positions.unsqueeze(-1);
  at::Tensor keys = key_positions.unsqueeze(-2);
  if (query_positions.dim() == 2) {
    queries = queries.unsqueeze(1);
    keys = keys.unsqueeze(1);
  }
  at::Tensor mask = (keys >= 0).logical_and(queries >= (reach.causal ? 0 : -1));
  if (reach.causal) mask = mask.logical_and(keys <= queries);
  if (reach.causal && reach.sliding_window > 0) mask = mask.logical_and(queries - keys < reach.sliding_window);
  return mask;
}

at::Tensor self_mask(const at::Tensor& positions, const AttentionReach& reach) {
  at::Tensor mask = reach_mask(positions, positions, reach);
  const int64_t length = positions.size(1);
  if (length > 1) {
    const at::Tensor before = positions.narrow(1, 0, length - 1);
    at::Tensor begins = at::zeros_like(positions);
    begins.narrow(1, 1, length - 1).copy_(positions.narrow(1, 1, length - 1) != before + 1);
    const at::Tensor documents = begins.cumsum(1);
    mask = mask.logical_and((documents.unsqueeze(2) == documents.unsqueeze(1)).unsqueeze(1));
  }
  return mask.logical_or(at::eye(length, mask.options()));
}

at::Tensor both_masks(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  const bool a_is_bool = a.scalar_type() == at::kBool;
  if (a_is_bool && b.scalar_type() == at::kBool) return a.logical_and(b);
  if (!a_is_bool && b.scalar_type() != at::kBool) return a + b;
  const at::Tensor& bools = a_is_bool ? a : b;
  const at::Tensor& numbers = a_is_bool ? b : a;
  return at::where(bools, numbers, at::scalar_tensor(-std::numeric_limits<double>::infinity(), numbers.options()));
}

}  // namespace levin::nn
