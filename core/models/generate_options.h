#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

namespace data {
class Tokenizer;
}  // namespace data

/// How texts are continued. By default with the likeliest token (greedily); `temperature` samples, `beams` searches.
struct GenerateOptions {
  int64_t max_new_tokens = 128;
  double temperature = 0;                            ///< of sampling: logits are divided by it; 0: the likeliest token
  int64_t top_k = 0;                                 ///< samples from the likeliest so many tokens; 0: from all
  double top_p = 1;                                  ///< from the likeliest whose probabilities together reach this
  double min_p = 0;                                  ///< from those with this share of the highest probability
  double repetition_penalty = 1;                     ///< above 1: tokens of the prompt and the text become less likely
  int64_t beams = 1;                                 ///< above 1: beam search with so many, without streaming
  double length_penalty = 1;                         ///< of beams: scores are divided by the length to this power
  std::vector<std::string> stop = {};                ///< texts that end a text, of which they are no part
  std::optional<std::vector<int64_t>> end_tokens{};  ///< end a text; nullopt: LanguageModelOptions::end_tokens
  uint64_t seed = 0;                                 ///< of sampling
  std::vector<int64_t> indices = {};                 ///< by prompt, see `generate`; empty: 0, 1, 2 and so on
  const data::Tokenizer* tokenizer = nullptr;        ///< gives texts; `stop` and `on_text` need it
  std::function<void(int64_t prompt, int64_t token)> on_token = {};         ///< called for each new token
  std::function<void(int64_t prompt, std::string_view text)> on_text = {};  ///< called for text that is whole
  /// Called with the logits of each step, float32 [N, vocabulary], which it may write to. On ranks that divide a model
  /// and continue the same prompts it broadcasts those of one of them: then all end together, without keep_in_step.
  std::function<void(const at::Tensor& logits)> on_logits = {};
  bool keep_in_step = false;  ///< takes max_new_tokens steps whatever ends, as ranks that divide a model must
};

}  // namespace levin
