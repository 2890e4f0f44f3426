#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace levin::data {

struct EncodeOptions {
  bool add_special_tokens = false;  ///< the tokens that the file's post-processor adds to each text, such as "<s>"
};

struct DecodeOptions {
  bool skip_special_tokens = false;  ///< those that the file marks as special are left out
  bool skip_incomplete = false;      ///< so are the bytes of a character at the end that lacks some
};

/// A tokenizer, read from the tokenizer.json that Hugging Face's `tokenizers` writes: byte-level BPE (GPT-2, Llama 3,
/// Qwen, OLMo, SmolLM), BPE with bytes for what it does not know (Llama 2, Mistral, Gemma) and Unigram. Ids and texts
/// are those of `tokenizers`. Thread-safe.
class Tokenizer {
 public:
  /// Reads a tokenizer.json. Throws levin::Error when it is damaged or has what is not known, naming it.
  explicit Tokenizer(const std::string& path);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Returns the ids of a UTF-8 text. Throws levin::Error when it is not UTF-8.
  std::vector<int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Appends the same ids, in half the memory: those of a long text.
  void append_ids(std::string_view text, std::vector<int32_t>& ids) const;
  /// Returns the text of these ids; ids that no token has are left out, and U+FFFD replaces bytes that are not
  /// UTF-8.
  std::string decode(const std::vector<int64_t>& ids, const DecodeOptions& options = {}) const;
  /// The same of ids of 32 bits. (A template, so that a braced list is one of int64_t.)
  template <std::same_as<int32_t> Id>
  std::string decode(const std::vector<Id>& ids, const DecodeOptions& options = {}) const {
    return decode(std::vector<int64_t>(ids.begin(), ids.end()), options);
  }
  /// Returns one more than the largest id.
  int64_t size() const;
  /// Returns the id of a token as the file spells it, such as "<|endoftext|>". Throws levin::Error when there is none.
  int64_t id(const std::string& token) const;
  /// Returns whether an id is that of a token which the file marks as special.
  bool is_special(int64_t id) const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace levin::data
