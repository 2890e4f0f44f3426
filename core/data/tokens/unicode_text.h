#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace levin::data {

/// Returns where a text stops being UTF-8; std::string_view::npos: nowhere.
size_t find_invalid_utf8(std::string_view text);

/// Returns how many bytes at the end begin a character that lacks some.
size_t incomplete_bytes(std::string_view bytes);

/// Replaces what is not UTF-8 by U+FFFD, one for each maximal part of a character.
std::string with_replacements(std::string_view bytes);

/// Returns the code point at a place of a UTF-8 text, and moves the place behind it. Requires: the text is UTF-8.
inline uint32_t take_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const uint32_t lead = byte(0);
  uint32_t point = lead;
  size_t length = 1;
  if (lead >= 0xf0) {
    point = (lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
    length = 4;
  } else if (lead >= 0xe0) {
    point = (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    length = 3;
  } else if (lead >= 0xc0) {
    point = (lead & 0x1f) << 6 | (byte(1) & 0x3f);
    length = 2;
  }
  at += length;
  return point;
}

/// Returns where the character begins that ends at a place behind the first. Requires: the text is UTF-8.
size_t character_before(std::string_view text, size_t at);
/// Returns its code point.
uint32_t code_point_before(std::string_view text, size_t at);

void append_code_point(std::string& text, uint32_t point);

/// Unicode's White_Space.
bool is_white_space(uint32_t point);
/// Unicode's numbers: digits, letters that are numbers, fractions and the like.
bool is_number(uint32_t point);
/// `\w` as Unicode's technical standard 18 defines it.
bool is_word_character(uint32_t point);

/// Forms in which Unicode writes one text alike (UAX #15).
enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// Brings a UTF-8 text into one of Unicode's normal forms. As in `tokenizers`, it is that of Unicode 9: characters that
/// came later stay as they are.
void normalize(std::string& text, NormalForm form);

/// Gives each character's own lower case: no rule looks at its neighbours.
void make_lowercase(std::string& text);

}  // namespace levin::data
