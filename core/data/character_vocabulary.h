#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace levin::data {

/// Numbering of the characters (Unicode code points) of a text. 0 is padding, 1 any character not in the text, and the
/// others follow in code point order, so that the same text always gives the same numbers. Bytes that are not UTF-8
/// count as U+FFFD each.
class CharacterVocabulary {
 public:
  static constexpr int64_t kPadding = 0;
  static constexpr int64_t kUnknown = 1;

  enum class LineEnds { kLeaveOut, kKeep };

  /// Numbers the characters of a UTF-8 text, with or without its line ends.
  explicit CharacterVocabulary(std::string_view text, LineEnds line_ends = LineEnds::kLeaveOut);

  /// Returns how many numbers are in use, padding and unknown included.
  int64_t size() const { return kFirst + static_cast<int64_t>(characters_.size()); }
  /// Writes the numbers of the first characters of `text` to `ids`, as many as fit; returns how many.
  int64_t encode(std::string_view text, std::span<int64_t> ids) const;
  /// Returns the text of these numbers, without padding; U+FFFD for unknown ones.
  std::string decode(std::span<const int64_t> ids) const;

 private:
  static constexpr int64_t kFirst = 2;

  std::vector<char32_t> characters_;  ///< sorted
  std::unordered_map<char32_t, int64_t> ids_;
};

}  // namespace levin::data
