#pragma once

#include <levin/core/models/generate_options.h>
#include <levin/core/nn/transformer/key_value_cache.h>
#include <levin/core/nn/transformer/language_model.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace levin {

/// Prompts and what follows them through a model, token by token, with a key/value cache. A row for each prompt.
class Decoding {
 public:
  /// Throws levin::Error where a cache for `most_new` further tokens of `rows` rows does not fit into memory.
  /// `options`: outlive this object.
  Decoding(nn::CausalLanguageModel model, const std::vector<std::vector<int64_t>>& prompts, int64_t most_new,
           int64_t rows, const GenerateOptions& options);

  /// Returns the logits of the token after each prompt, float32 [N, vocabulary]. Once, first.
  at::Tensor prompt_logits();
  /// Takes the next token of each row, int64 [N], and returns the logits of the one that follows.
  at::Tensor next_logits(const at::Tensor& tokens);
  /// Keeps these rows, int64 [M], in this order.
  void select_rows(const at::Tensor& rows);
  const at::Device& device() const { return device_; }

 private:
  at::Tensor step(const at::Tensor& tokens, const at::Tensor& positions);

  nn::CausalLanguageModel model_;
  const GenerateOptions& options_;
  at::Device device_;
  nn::KeyValueCache cache_;
  at::Tensor tokens_;     ///< of the prompts, [N, T], padded on the left
  at::Tensor positions_;  ///< of tokens_: [T] where no row is padded, else [N, T]; then of the last tokens
};

}  // namespace levin
