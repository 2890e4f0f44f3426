#include <levin/core/data/tokens/unicode_text.h>

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace levin::data {

namespace {

struct Character {
  size_t length = 0;  ///< of the character, or of what one U+FFFD stands for
  bool is_valid = false;
};

Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned { return static_cast<unsigned char>(text[at + i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true};
  size_t length = 0;
  unsigned least = 0x80;  // of the second byte
  unsigned most = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) least = 0xa0;
    if (lead == 0xed) most = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) least = 0x90;
    if (lead == 0xf4) most = 0x8f;
  } else {
    return {1, false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (at + i >= text.size() || byte(i) < least || byte(i) > most) return {i, false};
    least = 0x80;
    most = 0xbf;
  }
  return {length, true};
}

size_t skip_ascii(std::string_view text, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  for (; at + sizeof(uint64_t) <= text.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, sizeof(word));
    if ((word & kHighBits) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

/// Code points that came after Unicode 9 and have a combining class or a decomposition.
constexpr uint32_t kAfterUnicode9[][2] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0xece, 0xece},     {0x1715, 0x1715},   {0x1abf, 0x1ace},
    {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},
    {0x10781, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50},
    {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
    {0x11d42, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e030, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c},
    {0x1fbf0, 0x1fbf9},
};

bool is_after_unicode_9(uint32_t point) {
  if (point < kAfterUnicode9[0][0]) return false;
  const auto* const range = std::lower_bound(std::begin(kAfterUnicode9), std::end(kAfterUnicode9), point,
                                             [](const uint32_t(&one)[2], uint32_t value) { return one[1] < value; });
  return range != std::end(kAfterUnicode9) && point >= (*range)[0];
}

/// Whether a character is its own normal form, where none that combines follows, and combines with none before it. Not
/// all such characters: those of most texts.
bool is_settled(uint32_t point, NormalForm form) {
  switch (form) {
    case NormalForm::kNfc:
      if (point < 0x300) return true;
      break;
    case NormalForm::kNfd:
      return point < 0xc0;
    case NormalForm::kNfkc:
      if (point < 0xa0) return true;
      break;
    case NormalForm::kNfkd:
      return point < 0xa0;
  }
  const auto within = [&](uint32_t first, uint32_t last) { return point >= first && point <= last; };
  return within(0x3041, 0x3096) || within(0x30a1, 0x30fa) || within(0x3400, 0x4dbf) || within(0x4e00, 0x9fff) ||
         within(0xac00, 0xd7a3);
}

int combining_class(int32_t point) { return utf8proc_get_property(point)->combining_class; }

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  for (size_t at = skip_ascii(text, 0); at < text.size();) {
    const Character character = character_at(text, at);
    if (!character.is_valid) return at;
    at += character.length;
    if (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) at = skip_ascii(text, at);
  }
  return std::string_view::npos;
}

size_t incomplete_bytes(std::string_view bytes) {
  for (size_t count = 1; count <= std::min<size_t>(bytes.size(), 3); ++count) {
    const size_t at = bytes.size() - count;
    const auto byte = static_cast<unsigned char>(bytes[at]);
    if ((byte & 0xc0) == 0x80) continue;
    const Character last = character_at(bytes, at);
    return !last.is_valid && last.length == count && byte >= 0xc2 && byte <= 0xf4 ? count : 0;
  }
  return 0;
}

std::string with_replacements(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (true) {
    const size_t valid = std::min(find_invalid_utf8(bytes), bytes.size());
    text += bytes.substr(0, valid);
    if (valid == bytes.size()) return text;
    text += "\xef\xbf\xbd";
    bytes.remove_prefix(valid + character_at(bytes, valid).length);
  }
}

size_t character_before(std::string_view text, size_t at) {
  --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

uint32_t code_point_before(std::string_view text, size_t at) {
  at = character_before(text, at);
  return take_code_point(text, at);
}

void append_code_point(std::string& text, uint32_t point) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(point), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

bool is_white_space(uint32_t point) {
  return (point >= 0x09 && point <= 0x0d) || point == 0x20 || point == 0x85 || point == 0xa0 || point == 0x1680 ||
         (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 || point == 0x202f ||
         point == 0x205f || point == 0x3000;
}

bool is_number(uint32_t point) {
  if (point < 0x80) return point >= '0' && point <= '9';
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(point));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool is_word_character(uint32_t point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  // Join controls, and symbols that are alphabetic: letters within circles and squares.
  const auto within = [&](uint32_t first, uint32_t last) { return point >= first && point <= last; };
  return within(0x200c, 0x200d) || within(0x24b6, 0x24e9) || within(0x1f130, 0x1f149) || within(0x1f150, 0x1f169) ||
         within(0x1f170, 0x1f189);
}

void normalize(std::string& text, NormalForm form) {
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool is_compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto decomposing =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (is_compatible ? UTF8PROC_COMPAT : 0));
  const auto composing = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  constexpr utf8proc_ssize_t kLongestDecomposition = 32;  // of Unicode's: 18
  std::string result;
  std::vector<int32_t> points;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    size_t last = at;  // the last of the settled characters, which may combine with what follows
    while (at < text.size()) {
      const size_t place = at;
      const uint32_t point = take_code_point(text, at);
      if (is_after_unicode_9(point)) {
        last = at;
      } else if (is_settled(point, form)) {
        last = place;
      } else {
        at = place;
        break;
      }
    }
    if (at == text.size()) {
      if (begin == 0) return;
      result.append(text, begin);
      break;
    }
    result.append(text, begin, last - begin);
    at = last;
    points.clear();
    do {
      const auto point = static_cast<utf8proc_int32_t>(take_code_point(text, at));
      utf8proc_int32_t parts[kLongestDecomposition];
      int boundary = 0;
      const auto count = utf8proc_decompose_char(point, parts, kLongestDecomposition, decomposing, &boundary);
      points.insert(points.end(), parts, parts + std::clamp<utf8proc_ssize_t>(count, 0, kLongestDecomposition));
      size_t next = at;
      if (at < text.size()) {
        const uint32_t following = take_code_point(text, next);
        if (is_settled(following, form) || is_after_unicode_9(following)) break;
      }
    } while (at < text.size());
    for (auto mark = points.begin(); mark != points.end();) {
      if (*mark < 0x300 || combining_class(*mark) == 0) {
        ++mark;
        continue;
      }
      const auto end = std::find_if(mark, points.end(), [](int32_t point) { return combining_class(point) == 0; });
      std::stable_sort(mark, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
      mark = end;
    }
    auto length = std::ssize(points);
    if (composes) length = utf8proc_normalize_utf32(points.data(), length, composing);
    for (std::ptrdiff_t i = 0; i < length; ++i)
      append_code_point(result, static_cast<uint32_t>(points[static_cast<size_t>(i)]));
  }
  text = std::move(result);
}

void make_lowercase(std::string& text) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const uint32_t point = take_code_point(text, at);
    if (point < 0x80) {
      result += static_cast<char>(point >= 'A' && point <= 'Z' ? point + ('a' - 'A') : point);
    } else if (point == 0x130) {
      result += "i\xcc\x87";
    } else {
      append_code_point(result, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point))));
    }
  }
  text = std::move(result);
}

}  // namespace levin::data
