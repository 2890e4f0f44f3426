#pragma once

#include <levin/core/models/generate_options.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace levin {

/// Returns scores [N, vocabulary] in which tokens that were seen, bools [N, vocabulary], are less likely: Keskar et
/// al., "CTRL: A Conditional Transformer Language Model for Controllable Generation", 2019.
at::Tensor penalize_repetition(const at::Tensor& scores, const at::Tensor& seen, double penalty);

/// Returns what the options' temperature, top_k, top_p and min_p, one after another, make of logits [N, vocabulary]:
/// probabilities, float32.
at::Tensor sampling_probabilities(const at::Tensor& logits, const GenerateOptions& options);

/// Chooses tokens as the options say.
class TokenChooser {
 public:
  /// `options` must live as long.
  TokenChooser(const GenerateOptions& options, const std::vector<std::vector<int64_t>>& prompts, int64_t vocabulary,
               const at::Device& device);

  /// Returns the next token of each row, int64 [N] on the CPU, of logits [N, vocabulary]. `indices`: of the rows'
  /// prompts; `step`: tokens before it. Throws levin::Error for logits that are not finite.
  at::Tensor choose(at::Tensor logits, const std::vector<int64_t>& indices, int64_t step);
  /// Keeps these rows, int64 [M], in this order.
  void select_rows(const at::Tensor& rows);

 private:
  const GenerateOptions& options_;
  at::Tensor seen_;  ///< bools [N, vocabulary]; undefined without a penalty
};

/// Returns which tokens prompts have, bools [N, vocabulary].
at::Tensor seen_tokens(const std::vector<std::vector<int64_t>>& prompts, int64_t vocabulary, const at::Device& device);

}  // namespace levin
