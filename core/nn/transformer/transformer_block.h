#pragma once

#include <levin/core/nn/transformer/attention.h>
#include <levin/core/nn/transformer/mlp.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <tuple>

namespace levin::nn {

/// What a norm of a block does.
enum class NormKind {
  kRms,    ///< RMSNorm
  kLayer,  ///< layer norm with a bias
  kLayerWithoutBias,
};

/// Where the norms of a block are, of x + f(x), f being attention or the MLP.
enum class NormPlacement {
  kPre,     ///< x + f(norm(x)); the stack ends with a norm
  kPost,    ///< norm(x + f(x)), as the first transformers
  kOutput,  ///< x + norm(f(x)), as OLMo 2
  kBoth,    ///< x + norm(f(norm(x))), as Gemma 3
};

/// Options of a norm in a block, which is either kind.
struct BlockNormOptions {
  NormKind kind = NormKind::kRms;
  int64_t size = 0;
  double eps = 1e-5;
  bool weight_is_offset = false;  ///< of kRms: see RMSNormOptions
};

/// RMSNorm or a layer norm, [..., size].
struct BlockNormImpl : torch::nn::Module {
  explicit BlockNormImpl(const BlockNormOptions& options);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;  ///< [size]
  at::Tensor bias;    ///< [size], or undefined

 private:
  BlockNormOptions options_;
};
TORCH_MODULE(BlockNorm);

struct TransformerBlockOptions {
  AttentionOptions attention = {};
  MlpOptions mlp = {};  ///< its `width` may be left out
  NormKind norm = NormKind::kRms;
  NormPlacement norm_placement = NormPlacement::kPre;
  double norm_eps = 1e-5;
  bool norm_weight_is_offset = false;  ///< of kRms
  bool cross_attention = false;        ///< attends to AttentionInputs::memory as well, between attention and MLP
  double dropout = 0;                  ///< of what is added to x, while training
};

/// A layer of a transformer: attention of tokens to each other, to a memory where there is one, and an MLP. Its parts
/// have the names that transformers gives them in Llama (`self_attn.q_proj`, `mlp.up_proj`, `input_layernorm`), OLMo 2
/// and Gemma 3.
class TransformerBlockBase : public torch::nn::Module {
 public:
  explicit TransformerBlockBase(const TransformerBlockOptions& options, const RotaryEmbedding& rotary = nullptr);
  /// [N, T, width] stays so.
  at::Tensor forward(const at::Tensor& x, const AttentionInputs& inputs);

  Attention self_attn{nullptr};
  Attention cross_attn{nullptr};
  Mlp mlp{nullptr};
  /// Those that the placement has; after `post_attention_layernorm` kPre means "before the MLP", as Llama's name.
  BlockNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
  BlockNorm pre_cross_attention_layernorm{nullptr}, post_cross_attention_layernorm{nullptr};
  BlockNorm pre_feedforward_layernorm{nullptr}, post_feedforward_layernorm{nullptr};
  torch::nn::Dropout dropout{nullptr};

 private:
  template <class Layer>
  at::Tensor residual(const at::Tensor& x, BlockNorm& before, BlockNorm& after, Layer&& layer);

  NormPlacement placement_;
  bool has_cross_attention_;
};

/// A unit: `block(x)`, `block(x, {.positions = positions})`.
class TransformerBlockImpl : public detail::UnitWithInputs<TransformerBlockBase> {
 public:
  using detail::UnitWithInputs<TransformerBlockBase>::UnitWithInputs;
};
/// The holder of TransformerBlockImpl.
class TransformerBlock : public detail::HolderWithInputs<TransformerBlockImpl> {
 public:
  using detail::HolderWithInputs<TransformerBlockImpl>::HolderWithInputs;
  using Impl [[maybe_unused]] = TransformerBlockImpl;
};

/// The block as a member of a levin::Sequential that carries more than x, such as a pipeline cuts: takes and gives x,
/// positions (as AttentionInputs has them) and targets, of which it only uses the first two.
struct DecoderLayerImpl : TransformerBlockBase {
  using TransformerBlockBase::TransformerBlockBase;
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& positions,
                                                         const at::Tensor& targets);
};
LEVIN_UNIT(DecoderLayer);

}  // namespace levin::nn
