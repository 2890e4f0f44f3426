#include <levin/core/nn/transformer/transformer_stack.h>

#include <levin/core/nn/cut_sequence.h>

#include <levin/core/base/error.h>

#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <utility>

namespace levin::nn {
namespace {

TransformerStackOptions of_encoder(TransformerStackOptions options) {
  options.block.attention.causal = false;
  options.block.cross_attention = false;
  return options;
}

TransformerStackOptions of_decoder(TransformerStackOptions options) {
  options.block.attention.causal = true;
  return options;
}

}  // namespace

TransformerStackBase::TransformerStackBase(const TransformerStackOptions& options, const RotaryEmbedding& rotary) {
  if (options.layers < 1) throw ConfigError(fmt::format("layers is at least 1; got {}", options.layers));
  torch::nn::ModuleList list;
  for (int64_t i = 0; i < options.layers; ++i) {
    blocks.emplace_back(options.block, rotary);
    list->push_back(blocks.back());
  }
  register_module("layers", list);
  if (options.final_norm)
    norm =
        register_module("norm", BlockNorm(BlockNormOptions{.kind = options.block.norm,
                                                           .size = options.block.attention.width,
                                                           .eps = options.block.norm_eps,
                                                           .weight_is_offset = options.block.norm_weight_is_offset}));
}

at::Tensor TransformerStackBase::forward(const at::Tensor& x, const AttentionInputs& inputs) {
  const RotaryScope scope;
  AttentionInputs shared = inputs;  // one tensor of positions for all blocks, by which the rotary embedding knows it
  if (!shared.positions.defined()) shared.positions = at::arange(full_sequence_length(x), x.options().dtype(at::kLong));
  at::Tensor y = x;
  for (TransformerBlock& block : blocks) y = block(y, shared);
  return norm ? norm(y) : y;
}

TransformerEncoderBase::TransformerEncoderBase(const TransformerStackOptions& options, const RotaryEmbedding& rotary)
    : TransformerStackBase(of_encoder(options), rotary) {}

TransformerDecoderBase::TransformerDecoderBase(const TransformerStackOptions& options, const RotaryEmbedding& rotary)
    : TransformerStackBase(of_decoder(options), rotary) {}

}  // namespace levin::nn
