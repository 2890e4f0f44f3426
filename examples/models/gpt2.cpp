#include "gpt2.h"

#include <cmath>
#include <string>

namespace example::models {

namespace {

constexpr double kInitialStd = 0.02;

torch::nn::LayerNorm make_norm(const Gpt2Options& options) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.n_embd}).eps(options.layer_norm_epsilon));
}

/// What is added to the residual stream starts smaller the deeper the network is.
Conv1D make_projection(int64_t in, const Gpt2Options& options) {
  Conv1D projection(in, options.n_embd);
  torch::nn::init::normal_(projection->weight, 0, kInitialStd / std::sqrt(2.0 * static_cast<double>(options.n_layer)));
  return projection;
}

}  // namespace

void Gpt2Options::describe(levin::Schema<Gpt2Options>& schema) {
  using O = Gpt2Options;
  schema.field("vocab_size", &O::vocab_size, "tokens told apart").at_least(1);
  schema.field("n_positions", &O::n_positions, "the most tokens in a row").at_least(1);
  schema.field("n_embd", &O::n_embd, "features of a token between blocks; a multiple of n_head").at_least(1);
  schema.field("n_layer", &O::n_layer, "blocks").at_least(1);
  schema.field("n_head", &O::n_head, "attention heads of a block").at_least(1);
  schema.field("dropout", &O::dropout, "of embeddings, attention weights and what is added to the residual stream")
      .at_least(0)
      .below(1);
  schema.field("layer_norm_epsilon", &O::layer_norm_epsilon, "added to variances").above(0);
}

Conv1DImpl::Conv1DImpl(int64_t in, int64_t out) {
  weight = register_parameter("weight", torch::empty({in, out}));
  bias = register_parameter("bias", torch::zeros({out}));
  torch::nn::init::normal_(weight, 0, kInitialStd);
}

torch::Tensor Conv1DImpl::forward(const torch::Tensor& x) {
  // As one operator, which mixed precision computes in 16 bits, the sum included.
  return torch::addmm(bias, x.flatten(0, -2), weight).unflatten(0, x.sizes().slice(0, x.dim() - 1));
}

Gpt2AttentionImpl::Gpt2AttentionImpl(const Gpt2Options& options)
    : heads_(options.n_head), attention_dropout_(options.dropout) {
  c_attn = register_module("c_attn", Conv1D(options.n_embd, 3 * options.n_embd));
  c_proj = register_module("c_proj", make_projection(options.n_embd, options));
  dropout = register_module("resid_dropout", torch::nn::Dropout(options.dropout));
}

torch::Tensor Gpt2AttentionImpl::forward(const torch::Tensor& x) {
  const auto parts = c_attn(x).chunk(3, 2);
  const auto by_head = [&](const torch::Tensor& part) {
    return part.unflatten(2, {heads_, part.size(2) / heads_}).transpose(1, 2);
  };
  const torch::Tensor mixed =
      at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), /*attn_mask=*/{},
                                       is_training() ? attention_dropout_ : 0.0, /*is_causal=*/true);
  return dropout(c_proj(mixed.transpose(1, 2).flatten(2)));
}

Gpt2MlpImpl::Gpt2MlpImpl(const Gpt2Options& options) {
  c_fc = register_module("c_fc", Conv1D(options.n_embd, 4 * options.n_embd));
  c_proj = register_module("c_proj", make_projection(4 * options.n_embd, options));
  dropout = register_module("dropout", torch::nn::Dropout(options.dropout));
}

torch::Tensor Gpt2MlpImpl::forward(const torch::Tensor& x) { return dropout(c_proj(torch::gelu(c_fc(x), "tanh"))); }

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2Options& options) {
  ln_1 = register_module("ln_1", make_norm(options));
  attn = register_module("attn", Gpt2Attention(options));
  ln_2 = register_module("ln_2", make_norm(options));
  mlp = register_module("mlp", Gpt2Mlp(options));
}

torch::Tensor Gpt2BlockImpl::forward(const torch::Tensor& x) {
  const torch::Tensor y = x + attn(ln_1(x));
  return y + mlp(ln_2(y));
}

Gpt2Impl::Gpt2Impl(const Gpt2Options& options) {
  if (options.n_embd % options.n_head != 0)
    throw levin::ConfigError("n_embd must be a multiple of n_head; got " + std::to_string(options.n_embd) + " and " +
                             std::to_string(options.n_head));
  wte = register_module("wte", torch::nn::Embedding(options.vocab_size, options.n_embd));
  wpe = register_module("wpe", torch::nn::Embedding(options.n_positions, options.n_embd));
  torch::nn::init::normal_(wte->weight, 0, kInitialStd);
  torch::nn::init::normal_(wpe->weight, 0, kInitialStd);
  dropout = register_module("drop", torch::nn::Dropout(options.dropout));
  levin::Sequential blocks;
  for (int64_t i = 0; i < options.n_layer; ++i) blocks->push_back(Gpt2Block(options));
  h = register_module("h", blocks);
  ln_f = register_module("ln_f", make_norm(options));
}

torch::Tensor Gpt2Impl::forward(const torch::Tensor& tokens) {
  const torch::Tensor places = torch::arange(tokens.size(1), tokens.options());
  const torch::Tensor x = dropout(wte(tokens) + wpe(places));
  return torch::linear(ln_f(h(x)), wte->weight);
}

}  // namespace example::models
