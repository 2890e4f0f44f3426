#pragma once

#include <levin/levin.h>

#include <cstdint>

namespace example::models {

/// Those of Hugging Face's config.json, of the smallest GPT-2 (124 million parameters) unless given.
struct Gpt2Options {
  int64_t vocab_size = 50257;
  int64_t n_positions = 1024;
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  double dropout = 0.1;  ///< of embeddings, attention weights and what is added to the residual stream
  double layer_norm_epsilon = 1e-5;

  static void describe(levin::Schema<Gpt2Options>& schema);
};

/// A linear layer with its weight the other way round, [in, out], as GPT-2's files have it.
struct Conv1DImpl : torch::nn::Module {
  Conv1DImpl(int64_t in, int64_t out);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;
  torch::Tensor bias;
};
TORCH_MODULE(Conv1D);

/// `attn`: causal self-attention of [N, T, n_embd].
struct Gpt2AttentionImpl : torch::nn::Module {
  explicit Gpt2AttentionImpl(const Gpt2Options& options);
  torch::Tensor forward(const torch::Tensor& x);

  Conv1D c_attn{nullptr}, c_proj{nullptr};
  torch::nn::Dropout dropout{nullptr};

 private:
  int64_t heads_;
  double attention_dropout_;
};
TORCH_MODULE(Gpt2Attention);

/// `mlp`: two layers with a GELU between.
struct Gpt2MlpImpl : torch::nn::Module {
  explicit Gpt2MlpImpl(const Gpt2Options& options);
  torch::Tensor forward(const torch::Tensor& x);

  Conv1D c_fc{nullptr}, c_proj{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Gpt2Mlp);

/// Attention and MLP, each added to its input after a norm: [N, T, n_embd] stays so.
struct Gpt2BlockImpl : torch::nn::Module {
  explicit Gpt2BlockImpl(const Gpt2Options& options);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  Gpt2Attention attn{nullptr};
  Gpt2Mlp mlp{nullptr};
};
LEVIN_UNIT(Gpt2Block);

/// Hugging Face's GPT2LMHeadModel with the names of its files, "wte.weight", "h.0.attn.c_attn.weight": tokens int64
/// [N, T] become logits [N, T, vocab_size]. The head has the weight of the token embedding.
struct Gpt2Impl : torch::nn::Module {
  explicit Gpt2Impl(const Gpt2Options& options);
  torch::Tensor forward(const torch::Tensor& tokens);

  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::Dropout dropout{nullptr};
  levin::Sequential h{nullptr};
  torch::nn::LayerNorm ln_f{nullptr};
};
TORCH_MODULE(Gpt2);

}  // namespace example::models
