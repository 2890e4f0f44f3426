#pragma once

#include <levin/core/nn/tensor_plan.h>
#include <levin/core/nn/transformer/attention_inputs.h>
#include <levin/core/nn/transformer/rms_norm.h>
#include <levin/core/nn/transformer/rotary_embedding.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

namespace levin::nn {

/// What queries and keys are normalized over, each with a weight of its own, before they are rotated.
enum class QueryKeyNorm {
  kNone,
  kHead,        ///< each head by itself, as in Qwen3 and Gemma 3
  kProjection,  ///< all heads together, as in OLMo 2
};

struct AttentionOptions {
  int64_t width = 0;            ///< features of the input and of the output
  int64_t heads = 1;            ///< of queries
  int64_t key_value_heads = 0;  ///< each serves a group of query heads; 0: as many as `heads`
  int64_t head_dim = 0;         ///< features of a head; 0: width / heads
  int64_t memory_width = 0;     ///< features of AttentionInputs::memory; 0: width
  bool causal = false;          ///< no token attends to a later one; not to memory
  int64_t sliding_window = 0;   ///< of causal attention: to the last so many, itself included; 0: to all
  bool bias = false;            ///< of the projections of queries, keys and values
  bool output_bias = false;
  std::optional<double> scale = {};  ///< of the scores; nullopt: 1 / √head_dim
  double dropout = 0;                ///< of the weights, while training
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  double norm_eps = 1e-6;
  bool norm_weight_is_offset = false;  ///< see RMSNormOptions
  double initial_std = 0;              ///< deviation of the initial weights; 0: as torch::nn::Linear
  double initial_output_std = 0;       ///< likewise of o_proj; 0: as the others
};

/// Attention of tokens to each other, or to a memory, by scaled_dot_product_attention: Vaswani et al., "Attention Is
/// All You Need", 2017; with fewer heads of keys and values: Ainslie et al., "GQA: Training Generalized Multi-Query
/// Transformer Models from Multi-Head Checkpoints", 2023. Numbers of heads follow from the sizes of what the
/// projections give, so that projections cut along heads need no change here. Inside of a KeyValueCache::Step it
/// attends to the tokens of the cache as well.
class AttentionBase : public torch::nn::Module, public HasTensorPlan {
 public:
  /// `rotary`: rotates queries and keys by their positions; none without. Layers share one.
  explicit AttentionBase(const AttentionOptions& options, RotaryEmbedding rotary = nullptr);
  /// [N, T, width] stays so.
  at::Tensor forward(const at::Tensor& x, const AttentionInputs& inputs);
  /// Along heads. Throws ConfigError where queries and keys are normalized: the gradients of a norm's weights would be
  /// those of this rank's heads alone.
  TensorPlan tensor_plan() const override;

  /// Weights [heads · head_dim, width] and [key_value_heads · head_dim, width or memory_width]; of o_proj
  /// [width, heads · head_dim].
  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
  RMSNorm q_norm{nullptr}, k_norm{nullptr};

 private:
  /// Of one new token of each row, by kernels of this folder. Projections [N, 1, features], which it overwrites.
  at::Tensor attend_token(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          const at::Tensor& positions);

  AttentionOptions options_;
  RotaryEmbedding rotary_;
};

/// A unit: `attention(x)`, `attention(x, {.memory = memory})`.
class AttentionImpl : public detail::UnitWithInputs<AttentionBase> {
 public:
  using detail::UnitWithInputs<AttentionBase>::UnitWithInputs;
};
/// The holder of AttentionImpl.
class Attention : public detail::HolderWithInputs<AttentionImpl> {
 public:
  using detail::HolderWithInputs<AttentionImpl>::HolderWithInputs;
  using Impl [[maybe_unused]] = AttentionImpl;
};

}  // namespace levin::nn
