#pragma once

#include <levin/core/data/tokens/byte_trie.h>
#include <levin/core/data/tokens/token_model.h>
#include <levin/core/data/tokens/tokenizer_file.h>

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace levin::data {

/// The unigram language model (Kudo, "Subword regularization", 2018): of all ways to make a word of tokens the one
/// whose tokens have the largest sum of scores.
class UnigramModel : public TokenModel {
 public:
  /// Reads the part `model` of a tokenizer.json. Throws levin::Error when it is damaged.
  UnigramModel(const nlohmann::json& model, Vocabulary& vocabulary, const TokenizerFile& file);

  /// Throws levin::Error for a character of no token, where no token stands for what is unknown.
  void append_ids(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  const TokenizerFile& file_;
  std::vector<double> scores_;  ///< by id
  ByteTrie trie_;
  double unknown_score_ = 0;
  std::optional<int32_t> unknown_;
  std::unordered_map<std::string, int32_t> ids_;
  std::optional<std::array<int32_t, 256>> bytes_;  ///< that stand for a byte of what is unknown, or -1
};

}  // namespace levin::data
