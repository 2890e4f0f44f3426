#pragma once

#include <levin/core/data/tokens/tokenizer_file.h>

#include <c10/util/FunctionRef.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string_view>
#include <vector>

namespace levin::data {

/// Takes one of the parts of a text; `is_first`: it begins where what is encoded begins.
using TakePart = c10::function_ref<void(std::string_view part, bool is_first)>;

/// One way to split a text, and to change it on the way. Thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Gives the parts in order. Requires: the text is UTF-8 and not empty.
  virtual void split(std::string_view text, bool is_first, TakePart take) const = 0;
};

/// What splits a normalized text into the words that a model makes tokens of.
class PreTokenizers {
 public:
  PreTokenizers() = default;
  /// Reads the part `pre_tokenizer` of a tokenizer.json. Throws levin::Error for what is not known.
  PreTokenizers(const nlohmann::json& part, const TokenizerFile& file);

  /// Whether words are bytes, of which a model sees the characters of byte_characters().
  bool gives_bytes() const { return gives_bytes_; }
  /// Gives the words of a text, which are not empty, in order.
  void split(std::string_view text, bool is_first, TakePart take) const { split_from(0, text, is_first, take); }

 private:
  void split_from(size_t step, std::string_view text, bool is_first, TakePart take) const;

  std::vector<std::unique_ptr<const PreTokenizer>> steps_;
  bool gives_bytes_ = false;
};

}  // namespace levin::data
