#include <levin/core/base/utf8.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace levin {

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

std::string shown_text(std::string_view text, size_t most_bytes) {
  size_t end = std::min(text.size(), most_bytes);
  const auto is_inside_character = [&] { return (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80; };
  while (end > 0 && end < text.size() && is_inside_character()) --end;
  std::string shown(text.substr(0, end));
  const auto is_control = [](unsigned char c) { return c < ' ' || c == '\x7f'; };
  std::replace_if(shown.begin(), shown.end(), is_control, ' ');
  return end < text.size() ? shown + "..." : shown;
}

}  // namespace levin
