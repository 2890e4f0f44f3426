#pragma once

#include <levin/core/nn/transformer/transformer_block.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace levin::nn {

struct TransformerStackOptions {
  TransformerBlockOptions block = {};
  int64_t layers = 1;
  bool final_norm = true;  ///< a norm at the end; without it pre-norm blocks give sums that grow
};

/// Blocks one after another, `layers.0` and so on, and a norm, `norm`.
class TransformerStackBase : public torch::nn::Module {
 public:
  explicit TransformerStackBase(const TransformerStackOptions& options, const RotaryEmbedding& rotary = nullptr);
  /// [N, T, width] stays so.
  at::Tensor forward(const at::Tensor& x, const AttentionInputs& inputs);

  std::vector<TransformerBlock> blocks = {};
  BlockNorm norm{nullptr};
};

/// Tokens that attend to all others. The options' `causal` and `cross_attention` are false whatever is given.
struct TransformerEncoderBase : TransformerStackBase {
  explicit TransformerEncoderBase(const TransformerStackOptions& options, const RotaryEmbedding& rotary = nullptr);
};
/// Tokens that attend to those before, and with `cross_attention` to a memory, as that of an encoder. `causal` is true
/// whatever is given.
struct TransformerDecoderBase : TransformerStackBase {
  explicit TransformerDecoderBase(const TransformerStackOptions& options, const RotaryEmbedding& rotary = nullptr);
};

/// As torch.nn.TransformerEncoder with batch_first: `encoder(x)`, `encoder(x, {.positions = positions})`. What
/// src_key_padding_mask is there, positions of −1 are here.
class TransformerEncoderImpl : public detail::UnitWithInputs<TransformerEncoderBase> {
 public:
  using detail::UnitWithInputs<TransformerEncoderBase>::UnitWithInputs;
};
/// The holder of TransformerEncoderImpl.
class TransformerEncoder : public detail::HolderWithInputs<TransformerEncoderImpl> {
 public:
  using detail::HolderWithInputs<TransformerEncoderImpl>::HolderWithInputs;
  using Impl [[maybe_unused]] = TransformerEncoderImpl;
};

/// As torch.nn.TransformerDecoder with batch_first: `decoder(x, {.memory = memory})`.
class TransformerDecoderImpl : public detail::UnitWithInputs<TransformerDecoderBase> {
 public:
  using detail::UnitWithInputs<TransformerDecoderBase>::UnitWithInputs;
};
/// The holder of TransformerDecoderImpl.
class TransformerDecoder : public detail::HolderWithInputs<TransformerDecoderImpl> {
 public:
  using detail::HolderWithInputs<TransformerDecoderImpl>::HolderWithInputs;
  using Impl [[maybe_unused]] = TransformerDecoderImpl;
};

}  // namespace levin::nn
