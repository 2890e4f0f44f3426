#include <levin/core/data/character_vocabulary.h>

#include <algorithm>
#include <unordered_set>

namespace levin::data {

namespace {

constexpr char32_t kReplacement = 0xFFFD;

/// Takes one character off the front of a text that is not empty. A byte that begins no well-formed character is taken
/// alone.
char32_t take_character(std::string_view& text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  const size_t length = lead < 0x80                   ? 1
                        : lead >= 0xC2 && lead < 0xE0 ? 2
                        : (lead & 0xF0) == 0xE0       ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  char32_t value = length == 1 ? lead : lead & (0x7F >> length);
  bool valid = length > 0 && length <= text.size();
  for (size_t i = 1; valid && i < length; ++i) {
    valid = (byte(i) & 0xC0) == 0x80;
    value = value << 6 | (byte(i) & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  valid = valid && value >= kLeast[length] && value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
  text.remove_prefix(valid ? length : 1);
  return valid ? value : kReplacement;
}

void append_utf8(std::string& text, char32_t value) {
  const auto put = [&](char32_t bits) { text.push_back(static_cast<char>(bits)); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xC0 | value >> 6);
    put(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    put(0xE0 | value >> 12);
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  } else {
    put(0xF0 | value >> 18);
    put(0x80 | (value >> 12 & 0x3F));
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  }
}

}  // namespace

CharacterVocabulary::CharacterVocabulary(std::string_view text, LineEnds line_ends) {
  std::unordered_set<char32_t> seen;
  while (!text.empty()) seen.insert(take_character(text));
  if (line_ends == LineEnds::kLeaveOut) {
    seen.erase(U'\n');
    seen.erase(U'\r');
  }
  characters_.assign(seen.begin(), seen.end());
  std::sort(characters_.begin(), characters_.end());
  for (size_t i = 0; i < characters_.size(); ++i) ids_.emplace(characters_[i], kFirst + static_cast<int64_t>(i));
}

int64_t CharacterVocabulary::encode(std::string_view text, std::span<int64_t> ids) const {
  size_t count = 0;
  while (!text.empty() && count < ids.size()) {
    const auto found = ids_.find(take_character(text));
    ids[count++] = found == ids_.end() ? kUnknown : found->second;
  }
  return static_cast<int64_t>(count);
}

std::string CharacterVocabulary::decode(std::span<const int64_t> ids) const {
  std::string text;
  for (int64_t id : ids) {
    if (id == kPadding) continue;
    append_utf8(text, id >= kFirst && id < size() ? characters_[static_cast<size_t>(id - kFirst)] : kReplacement);
  }
  return text;
}

}  // namespace levin::data
