#pragma once

#include <levin/core/nn/sequential.h>
#include <levin/core/nn/tensor_plan.h>
#include <levin/core/nn/transformer/rotary_embedding.h>
#include <levin/core/nn/transformer/transformer_block.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace levin::nn {

/// A decoder-only language model; language_model_options makes these from a config.json.
struct LanguageModelOptions {
  std::string family = "llama";  ///< `model_type` of config.json, which says how files name the weights
  int64_t vocabulary = 0;
  int64_t layers = 1;
  int64_t max_positions = 0;           ///< longest text that it was made for; 0: not said
  TransformerBlockOptions block = {};  ///< of all layers
  std::optional<RotaryOptions> rotary = {};
  std::optional<RotaryOptions> sliding_rotary = {};  ///< of layers with a sliding window; nullopt: as the others
  std::vector<bool> has_sliding_window = {};         ///< by layer; empty: all have that of `block`, where it has one
  std::vector<bool> has_rotary = {};                 ///< by layer; empty: all
  int64_t learned_positions = 0;  ///< embeddings of positions, as in GPT-2, that are added to those of tokens
  double embedding_scale = 1;     ///< of the embeddings of tokens
  double embedding_dropout = 0;
  double initial_std = 0.02;
  bool tie_embeddings = false;           ///< the head has the weight of the embedding
  std::vector<int64_t> end_tokens = {};  ///< `eos_token_id`, which end a text
};

/// Tokens int64 [N, T] become [N, T, width].
struct TokenEmbeddingImpl : torch::nn::Module, HasTensorPlan {
  explicit TokenEmbeddingImpl(const LanguageModelOptions& options);
  /// Positions and targets pass.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& tokens, const at::Tensor& positions,
                                                         const at::Tensor& targets);
  /// Along the vocabulary.
  TensorPlan tensor_plan() const override;

  at::Tensor embed_tokens;     ///< [vocabulary, width]
  at::Tensor embed_positions;  ///< [learned_positions, width], or undefined
  torch::nn::Dropout dropout{nullptr};

 private:
  double scale_;
};
LEVIN_UNIT(TokenEmbedding);

/// A norm and the logits of the next token.
struct LanguageModelHeadImpl : torch::nn::Module, HasTensorPlan {
  /// `tied`: the weight [vocabulary, width] of the embedding, which the head shares; undefined for one of its own.
  LanguageModelHeadImpl(const LanguageModelOptions& options, const at::Tensor& tied);
  /// Gives logits [N, T, vocabulary]; where there are targets, int64 [N, T] and −100 to ignore, the mean cross-entropy
  /// instead, by linear_cross_entropy.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& targets);
  /// Along the vocabulary: logits are cut then (see full_logits).
  TensorPlan tensor_plan() const override;

  BlockNorm norm{nullptr};
  at::Tensor lm_head;  ///< [vocabulary, width]
};
LEVIN_UNIT(LanguageModelHead);

/// Llama, Mistral, Qwen, GPT-2, OLMo 2, SmolLM and Gemma 3, by their options. One levin::Sequential, `net`, of a
/// TokenEmbedding, a DecoderLayer each and a LanguageModelHead, which a pipeline cuts.
class CausalLanguageModelImpl : public torch::nn::Module {
 public:
  explicit CausalLanguageModelImpl(const LanguageModelOptions& options);

  /// Returns logits [N, T, vocabulary] of tokens int64 [N, T]. `positions`: as AttentionInputs::positions, where
  /// padding and packed documents are; inside of a KeyValueCache::Step those of the step.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions = {});
  /// Returns the logits of the last token of each row alone, [N, vocabulary].
  at::Tensor last_logits(const at::Tensor& tokens, const at::Tensor& positions = {});
  /// Returns the mean cross-entropy of what follows each token against `targets`, int64 [N, T], −100 to ignore, without
  /// logits in memory.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, const at::Tensor& positions = {});
  const LanguageModelOptions& options() const { return options_; }

  Sequential net{nullptr};

 private:
  /// Returns the tensors that `net` takes.
  std::vector<at::Tensor> inputs_of(const at::Tensor& tokens, at::Tensor positions, const at::Tensor& targets) const;

  LanguageModelOptions options_;
};
TORCH_MODULE(CausalLanguageModel);

}  // namespace levin::nn
