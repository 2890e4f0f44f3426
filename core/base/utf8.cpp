#include <levin/core/base/utf8.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <vector>

namespace levin {
namespace {

bool is_inside_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// Where to cut a text so that no character is cut in two: at most at `end`.
size_t cut(std::string_view text, size_t end) {
  while (end > 0 && end < text.size() && is_inside_character(text[end])) --end;
  return end;
}

}  // namespace

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

std::string shown_text(std::string_view text, size_t most_bytes) {
  const size_t end = cut(text, std::min(text.size(), most_bytes));
  std::string shown(text.substr(0, end));
  const auto is_control = [](unsigned char c) { return c < ' ' || c == '\x7f'; };
  std::replace_if(shown.begin(), shown.end(), is_control, ' ');
  return end < text.size() ? shown + "..." : shown;
}

std::string printable_text(std::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F are control characters too
      printable += fmt::format("\\x{:02x}", next);
      ++i;
    } else if ((byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f) {
      printable += fmt::format("\\x{:02x}", byte);
    } else {
      printable += text[i];
    }
  }
  return printable;
}

std::string error_text(std::string_view text) {
  constexpr size_t kMostBytes = 8192;
  constexpr size_t kEndBytes = 2048;  // with the hint
  constexpr std::string_view kIndent = "    ";
  std::string whole = printable_text(text);
  if (whole.size() > kMostBytes) {
    const size_t begin = cut(whole, kMostBytes - kEndBytes);
    whole = whole.substr(0, begin) + " ... " + whole.substr(cut(whole, whole.size() - kEndBytes));
  }
  for (size_t at = whole.find('\n'); at != std::string::npos && at + 1 < whole.size(); at = whole.find('\n', at + 1))
    if (whole.compare(at + 1, 2, "  ") != 0) whole.insert(at + 1, kIndent);
  return whole;
}

std::string shown_names(std::span<const std::string> names, size_t most_names) {
  constexpr size_t kMostBytes = 100;
  std::vector<std::string> first;
  for (const auto& name : names.first(std::min(names.size(), most_names)))
    first.push_back(shown_text(name, kMostBytes));
  return fmt::format("{}{}", fmt::join(first, ", "),
                     names.size() > most_names ? fmt::format(" and {} more", names.size() - most_names) : "");
}

}  // namespace levin
