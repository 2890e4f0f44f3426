#include <levin/loggers/json_text.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace levin {

std::string json_text(std::string_view text) {
  // Most texts are names that need no escapes.
  const auto plain = [](unsigned char c) { return c >= ' ' && c < 0x7F && c != '"' && c != '\\'; };
  if (std::all_of(text.begin(), text.end(), plain)) return fmt::format("\"{}\"", text);
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace levin
