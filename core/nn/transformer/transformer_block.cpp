#include <levin/core/nn/transformer/transformer_block.h>

#include <levin/core/base/error.h>
#include <levin/core/nn/transformer/key_value_cache.h>
#include <levin/core/nn/transformer/token_kernels.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

namespace levin::nn {

BlockNormImpl::BlockNormImpl(const BlockNormOptions& options) : options_(options) {
  const bool is_offset = options.kind == NormKind::kRms && options.weight_is_offset;
  weight = register_parameter("weight", is_offset ? at::zeros({options.size}) : at::ones({options.size}));
  if (options.kind == NormKind::kLayer) bias = register_parameter("bias", at::zeros({options.size}));
}

at::Tensor BlockNormImpl::forward(const at::Tensor& x) {
  const auto shape = x.sizes().slice(x.dim() - 1);
  if (options_.kind == NormKind::kRms && takes_token_kernels(x) && weight.scalar_type() == at::kFloat) {
    at::Tensor y = at::empty_like(x);
    detail::normalize_rows(x.const_data_ptr<float>(), weight.const_data_ptr<float>(), options_.weight_is_offset ? 1 : 0,
                           options_.eps, y.mutable_data_ptr<float>(), x.size(0), x.size(2));
    return y;
  }
  if (options_.kind == NormKind::kRms)
    return at::rms_norm(x, shape, options_.weight_is_offset ? weight + 1 : weight, options_.eps);
  return at::layer_norm(x, shape, weight, bias, options_.eps);
}

TransformerBlockBase::TransformerBlockBase(const TransformerBlockOptions& options, const RotaryEmbedding& rotary)
    : placement_(options.norm_placement), has_cross_attention_(options.cross_attention) {
  const int64_t width = options.attention.width;
  MlpOptions mlp_options = options.mlp;
  if (mlp_options.width == 0) mlp_options.width = width;
  if (mlp_options.width != width)
    throw ConfigError(
        fmt::format("TransformerBlock: attention and mlp have one width; got {} and {}", width, mlp_options.width));
  self_attn = register_module("self_attn", Attention(options.attention, rotary));
  if (has_cross_attention_) {
    AttentionOptions cross = options.attention;
    cross.causal = false;
    cross.sliding_window = 0;
    cross_attn = register_module("cross_attn", Attention(cross));
  }
  mlp = register_module("mlp", Mlp(mlp_options));

  const auto norm = [&](const char* name) {
    return register_module(name, BlockNorm(BlockNormOptions{.kind = options.norm,
                                                            .size = width,
                                                            .eps = options.norm_eps,
                                                            .weight_is_offset = options.norm_weight_is_offset}));
  };
  const bool has_input = placement_ == NormPlacement::kPre || placement_ == NormPlacement::kBoth;
  if (has_input) input_layernorm = norm("input_layernorm");
  post_attention_layernorm = norm("post_attention_layernorm");
  if (has_cross_attention_ && has_input) pre_cross_attention_layernorm = norm("pre_cross_attention_layernorm");
  if (has_cross_attention_ && placement_ != NormPlacement::kPre)
    post_cross_attention_layernorm = norm("post_cross_attention_layernorm");
  if (placement_ == NormPlacement::kBoth) pre_feedforward_layernorm = norm("pre_feedforward_layernorm");
  if (placement_ != NormPlacement::kPre) post_feedforward_layernorm = norm("post_feedforward_layernorm");
  if (options.dropout > 0) dropout = register_module("dropout", torch::nn::Dropout(options.dropout));
}

template <class Layer>
at::Tensor TransformerBlockBase::residual(const at::Tensor& x, BlockNorm& before, BlockNorm& after, Layer&& layer) {
  at::Tensor y = layer(before ? before(x) : x);
  if (placement_ == NormPlacement::kPost) return after(x + (dropout ? dropout(y) : y));
  if (after) y = after(y);
  return x + (dropout ? dropout(y) : y);
}

at::Tensor TransformerBlockBase::forward(const at::Tensor& x, const AttentionInputs& inputs) {
  if (has_cross_attention_ != inputs.memory.defined())
    throw Error("nn", has_cross_attention_
                          ? "a TransformerBlock with cross_attention needs a memory; hint: block(x, {.memory = memory})"
                          : "a TransformerBlock was given a memory, and has no cross_attention");
  const bool is_pre = placement_ == NormPlacement::kPre;
  BlockNorm none{nullptr};
  at::Tensor y = residual(x, input_layernorm, is_pre ? none : post_attention_layernorm, [&](const at::Tensor& input) {
    return self_attn(input, {.positions = inputs.positions, .mask = inputs.mask});
  });
  if (has_cross_attention_)
    y = residual(y, pre_cross_attention_layernorm, post_cross_attention_layernorm, [&](const at::Tensor& input) {
      return cross_attn(input, {.memory = inputs.memory, .memory_mask = inputs.memory_mask});
    });
  return residual(y, is_pre ? post_attention_layernorm : pre_feedforward_layernorm, post_feedforward_layernorm,
                  [&](const at::Tensor& input) { return mlp(input); });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> DecoderLayerImpl::forward(const at::Tensor& x,
                                                                         const at::Tensor& positions,
                                                                         const at::Tensor& targets) {
  return {TransformerBlockBase::forward(x, {.positions = positions}), positions, targets};
}

}  // namespace levin::nn
