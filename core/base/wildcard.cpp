#include <levin/core/base/wildcard.h>

#include <cstddef>

namespace levin {

bool matches_wildcard(std::string_view pattern, std::string_view text) {
  size_t in_pattern = 0;
  size_t in_text = 0;
  // The last star, and the text after what it stands for at present.
  size_t star = std::string_view::npos;
  size_t after_star = 0;
  while (in_text < text.size()) {
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      star = in_pattern++;
      after_star = in_text;
    } else if (in_pattern < pattern.size() && pattern[in_pattern] == text[in_text]) {
      ++in_pattern;
      ++in_text;
    } else if (star != std::string_view::npos) {
      in_pattern = star + 1;
      in_text = ++after_star;
    } else {
      return false;
    }
  }
  while (in_pattern < pattern.size() && pattern[in_pattern] == '*') ++in_pattern;
  return in_pattern == pattern.size();
}

}  // namespace levin
