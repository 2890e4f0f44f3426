#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace levin::data {

/// A byte-level byte-pair tokenizer, read from the tokenizer.json that Hugging Face's `tokenizers` writes: GPT-2's and
/// those of its kind, whose text is split by regular expressions. `encode` gives the ids of
/// `Tokenizer.encode(text, add_special_tokens=False)`: tokens that the file adds to each text are not added.
/// Thread-safe.
class BytePairTokenizer {
 public:
  /// Reads a tokenizer.json. Throws levin::Error when it is damaged or of another kind, naming what is different.
  explicit BytePairTokenizer(const std::string& path);
  ~BytePairTokenizer();
  BytePairTokenizer(const BytePairTokenizer&) = delete;
  BytePairTokenizer& operator=(const BytePairTokenizer&) = delete;

  /// Returns the ids of a UTF-8 text. Throws levin::Error when it is not UTF-8.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Returns the text of these ids; ids that no token has are left out.
  std::string decode(const std::vector<int64_t>& ids) const;
  /// Returns the text of ids as `encode` gives them. (A template, so that a braced list is one of int64_t.)
  template <std::same_as<int32_t> Id>
  std::string decode(const std::vector<Id>& ids) const {
    return decode(std::vector<int64_t>(ids.begin(), ids.end()));
  }
  /// Returns one more than the largest id.
  int64_t size() const;
  /// Returns the id of a token as the file spells it, such as "<|endoftext|>". Throws levin::Error when there is none.
  int64_t id(const std::string& token) const;

 private:
  struct Model;
  std::unique_ptr<const Model> model_;
};

}  // namespace levin::data
