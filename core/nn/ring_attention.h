#pragma once

#include <levin/core/nn/context_attention.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace levin {

class Collective;

namespace detail {

/// As attend_over_context, for any number of heads: keys and values go from rank to rank, and each rank's queries see
/// them one after another, combined by their log-sum-exp (Liu et al., "Ring Attention", 2023, arXiv:2310.01889). Of 2 *
/// ranks chunks of the positions rank r has r and 2 * ranks - 1 - r, so that ranks have the same work under a causal
/// mask, which is given by `causal`. The mask's positions are those of the sequence. Sums are in another order than on
/// one device. Throws levin::Error for dropout and for masks with gradients. Collective.
at::Tensor attend_in_ring(const ContextAttention& attention, const std::shared_ptr<Collective>& group);

/// The chunks that a rank of a ring has, of a dimension with all positions.
at::Tensor ring_part(const at::Tensor& all, int64_t dim, int64_t rank, int64_t ranks);
/// All positions with those of each rank in turn, from the order of the sequence, or back (`to_ranks` false).
at::Tensor in_ring_order(const at::Tensor& all, int64_t dim, int64_t ranks, bool to_ranks);

/// Attention of some queries to some keys, and what combines it with that to others. On CPUs LibTorch's flash kernel,
/// on GPUs too in 16 bits without a mask; otherwise products of matrices, in 32 bits for 16.
struct AttentionBlock {
  at::Tensor query;  ///< [N, heads, queries, features]
  at::Tensor key;    ///< [N, heads of keys, keys, features]; their number divides the heads
  at::Tensor value;
  at::Tensor mask = {};  ///< undefined: none; else added to the scores, finite, broadcasts to [N, heads, queries, keys]
  bool causal = false;
  std::optional<double> scale = {};
};
struct AttendedBlock {
  at::Tensor output;
  at::Tensor log_sum_exp;  ///< [N, heads, queries], in 32 bits at least
};
AttendedBlock attend_block(const AttentionBlock& block);
struct AttentionBlockGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};
/// `attended`: of the same queries to all keys.
AttentionBlockGradients attend_block_backward(const AttentionBlock& block, const AttendedBlock& attended,
                                              const at::Tensor& gradient);

}  // namespace detail
}  // namespace levin
