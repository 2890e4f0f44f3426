#pragma once

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

/// Byte-pair encoding (Sennrich et al., "Neural machine translation of rare words with subword units", 2016): the pair
/// of tokens that was merged first in training is merged first, the leftmost of several.
class BytePairModel : public TokenModel {
 public:
  /// Reads the part `model` of a tokenizer.json. `of_bytes`: words are bytes, which stand for byte_characters(). Throws
  /// levin::Error for what is not known, and when it is damaged.
  BytePairModel(const nlohmann::json& model, bool of_bytes, Vocabulary& vocabulary, const TokenizerFile& file);

  void append_ids(std::string_view word, std::vector<int32_t>& ids) const override;
  size_t end_of_part(std::string_view word) const override;

 private:
  struct Merge {
    uint64_t pair = ~uint64_t{0};
    int32_t rank = 0;
    int32_t id = 0;
  };
  struct Symbol {
    int32_t id;
    int32_t before;
    int32_t after;
  };
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  const Merge* find_merge(int32_t left, int32_t right) const;
  void read_merges(const nlohmann::json& merges, const Vocabulary& vocabulary, const TokenizerFile& file);
  void read_symbols(bool of_bytes, const Vocabulary& vocabulary, const TokenizerFile& file);
  /// Appends the tokens that the characters of a word begin as.
  void append_symbols(std::string_view word, std::vector<int32_t>& ids) const;
  static constexpr size_t kLongestShort = 32;  ///< tokens that are looked through, rather than kept in a queue
  void merge_short(std::vector<int32_t>& ids, size_t begin) const;
  void merge_long(std::vector<int32_t>& ids, size_t begin) const;

  bool of_bytes_;
  bool takes_whole_words_;  ///< a word that is a token is not made of merges
  bool fuses_unknown_;
  bool cuts_at_metaspace_ = false;
  std::optional<int32_t> unknown_;
  std::array<int32_t, 256> bytes_{};  ///< of_bytes: of each byte; else: that stand for a byte of what is unknown, or -1
  bool falls_back_to_bytes_ = false;
  std::unordered_map<uint32_t, int32_t> characters_;
  std::array<int32_t, 128> ascii_{};                ///< of characters_, or -1
  std::unordered_map<std::string, int32_t> words_;  ///< where whole words are taken
  std::vector<Merge> merges_;                       ///< a hash table, at most half full
  int shift_ = 63;
};

}  // namespace levin::data
