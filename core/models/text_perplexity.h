#pragma once

#include <levin/core/nn/transformer/language_model.h>

#include <cstdint>
#include <string>

namespace levin {

namespace data {
class Tokenizer;
}  // namespace data

struct TextPerplexityOptions {
  int64_t length = 0;              ///< tokens at once; 0: the positions of the model, at most 1024
  int64_t stride = 0;              ///< from one window to the next, whose first tokens are context alone; 0: `length`
  int64_t batch_size = 8;          ///< windows at once
  bool add_special_tokens = true;  ///< those that the tokenizer puts around a text
};

/// Returns the perplexity of a text file: the exponential of the mean negative log-likelihood of its tokens. Windows of
/// `length` tokens go through the model, each token counts once, and the first of a window without context does not.
/// Throws ConfigError for options, and levin::Error for a file or a tokenizer that does not go with the model.
double text_perplexity(nn::CausalLanguageModel model, const data::Tokenizer& tokenizer, const std::string& path,
                       const TextPerplexityOptions& options = {});

}  // namespace levin
