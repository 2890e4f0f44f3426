#pragma once

#include <levin/core/data/tokens/byte_trie.h>
#include <levin/core/data/tokens/normalizers.h>
#include <levin/core/data/tokens/tokenizer_file.h>

#include <c10/util/FunctionRef.h>
#include <nlohmann/json.hpp>

#include <array>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace levin::data {

/// Tokens that are looked for in a text before it is split, such as "<|endoftext|>". Thread-safe.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Reads the part `added_tokens` of a tokenizer.json, and adds the tokens to a vocabulary. Throws levin::Error when
  /// it is damaged.
  AddedTokens(const nlohmann::json& tokens, const Normalizers& normalizers, Vocabulary& vocabulary,
              const TokenizerFile& file);

  /// Which of the tokens are looked for: first those in the text as it is, then, in what lies between them once it is
  /// normalized, the others.
  enum class Stage { kAsItIs, kNormalized };
  /// Gives the ids of these tokens in a text, and the parts between them, whose id is -1, in order.
  void split(std::string_view text, Stage stage, c10::function_ref<void(std::string_view part, int32_t id)> give) const;

  /// Returns whether a token, as a vocabulary spells it, is special.
  bool is_special(std::string_view token) const { return special_.contains(std::string(token)); }

 private:
  struct Token {
    int32_t id = 0;
    bool strips_left = false;
    bool strips_right = false;
    bool is_word = false;
  };
  struct Matcher {
    std::vector<Token> tokens;
    ByteTrie trie;
    std::array<bool, 256> begins{};
  };
  std::array<Matcher, 2> matchers_;  ///< by Stage
  std::unordered_set<std::string> special_;
};

}  // namespace levin::data
