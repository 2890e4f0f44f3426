#pragma once

#include <levin/core/models/generate_options.h>
#include <levin/core/nn/transformer/language_model.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin {

namespace data {
class Tokenizer;
}  // namespace data

/// Why a text ended.
enum class GenerationEnd {
  kLength,     ///< it has max_new_tokens
  kPositions,  ///< the model has no positions for more
  kEndToken,
  kStopText,
};

/// What continues a prompt.
struct Generated {
  std::vector<int64_t> tokens = {};  ///< the new ones, without the end token
  std::string text = {};             ///< with a tokenizer: that of the new ones, up to `stop`, without special tokens
  GenerationEnd end = GenerationEnd::kLength;
};

/// Continues each prompt, in evaluation mode and with a key/value cache. Prompts may differ in length. What is sampled
/// is a function of (seed, index of the prompt, number of the token), whatever else is in the batch. On ranks that
/// divide the model (`sharded`, `tensor`) all call it, with keep_in_step or on_logits. Throws ConfigError for options
/// that contradict each other, and levin::Error for prompts, a tokenizer or stop texts that do not go with the model
/// and for a cache that does not fit into memory, before the first token.
std::vector<Generated> generate(nn::CausalLanguageModel model, const std::vector<std::vector<int64_t>>& prompts,
                                const GenerateOptions& options = {});
/// Continues texts, with the special tokens that the tokenizer puts around a text.
std::vector<Generated> generate(nn::CausalLanguageModel model, const data::Tokenizer& tokenizer,
                                const std::vector<std::string>& prompts, GenerateOptions options = {});

}  // namespace levin
