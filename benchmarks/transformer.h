#pragma once

#include <levin/levin.h>

#include <ATen/ops/scaled_dot_product_attention.h>

#include <cstdint>

/// The GPT-like transformer that several benchmarks train: blocks, of which each is a unit, of width 256 with 4 heads
/// where nothing else is said, on batches of 8 x 128 tokens.
namespace levin::benchmarks {

constexpr int64_t kWidth = 256;
constexpr int64_t kHeadWidth = 64;
constexpr int64_t kBatch = 8;
constexpr int64_t kLength = 128;
constexpr int64_t kVocabulary = 128;

/// [N, T, width] stays so.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(double dropout_probability, int64_t width = kWidth) {
    attention_norm = register_module("attention_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    projections = register_module("projections", torch::nn::Linear(width, 3 * width));
    output = register_module("output", torch::nn::Linear(width, width));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    widen = register_module("widen", torch::nn::Linear(width, 4 * width));
    narrow = register_module("narrow", torch::nn::Linear(4 * width, width));
    dropout = register_module("dropout", torch::nn::Dropout(dropout_probability));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x + dropout(attention(attention_norm(x)));
    return y + dropout(narrow(torch::gelu(widen(norm(y)))));
  }
  torch::Tensor attention(const torch::Tensor& x) {
    const auto parts = projections(x).view({x.size(0), x.size(1), 3, -1, kHeadWidth}).permute({2, 0, 3, 1, 4});
    const torch::Tensor mixed =
        torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return output(mixed.transpose(1, 2).reshape(x.sizes()));
  }
  torch::nn::LayerNorm attention_norm{nullptr};
  torch::nn::Linear projections{nullptr};
  torch::nn::Linear output{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear widen{nullptr};
  torch::nn::Linear narrow{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
LEVIN_UNIT(Block);

struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(int64_t block_count, double dropout = 0, int64_t width = kWidth) {
    embedding = register_module("embedding", torch::nn::Embedding(kVocabulary, width));
    blocks = register_module("blocks", levin::Sequential());
    for (int64_t i = 0; i < block_count; ++i) blocks->push_back(Block(dropout, width));
    head = register_module("head", torch::nn::Linear(width, kVocabulary));
  }
  /// Tokens int64 [N, T] become logits [N, T, vocabulary].
  torch::Tensor forward(const torch::Tensor& tokens) { return head(blocks->forward(embedding(tokens))); }
  /// Mean over all tokens; `targets` as `tokens`.
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
    return torch::nn::functional::cross_entropy(forward(tokens).flatten(0, 1), targets.flatten());
  }
  torch::nn::Embedding embedding{nullptr};
  levin::Sequential blocks{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

}  // namespace levin::benchmarks
