#pragma once

#include <levin/core/data/tokens/tokenizer_file.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace levin::data {

/// A text on its way through normalizers.
struct NormalizedText {
  explicit NormalizedText(std::string_view begin, bool first = false)
      : text(begin), is_first(first), most_bytes(most_bytes_of(begin.size())) {}
  /// Returns how long a text may become: what makes it longer is a file that anyone may have written.
  static size_t most_bytes_of(size_t bytes) { return std::max(size_t{1} << 20, 64 * bytes); }

  std::string text;
  bool is_first;  ///< its first character is made of the first one of what is encoded
  size_t most_bytes;
};

/// What is done to a text before it is split.
class Normalizers {
 public:
  Normalizers() = default;
  /// Reads the part `normalizer` of a tokenizer.json. Throws levin::Error for what is not known.
  Normalizers(const nlohmann::json& part, const TokenizerFile& file);

  bool empty() const { return steps_.empty(); }
  /// Requires: the text is UTF-8. Throws levin::Error when it would become too long.
  void apply(NormalizedText& text) const;

 private:
  std::vector<std::function<void(NormalizedText&)>> steps_;
};

/// Returns what replaces a pattern, a text or an expression, by `content`: of the parts Replace of normalizers and
/// decoders.
std::function<void(NormalizedText&)> read_replacement(const nlohmann::json& part, const TokenizerFile& file);

}  // namespace levin::data
