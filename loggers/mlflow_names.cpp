#include <levin/loggers/mlflow_names.h>

#include <fmt/format.h>
#include <xxhash.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace levin {
namespace {

constexpr size_t kLongestName = 250;
constexpr size_t kKeptOfLongName = 230;

bool allowed(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-. /").find(c) != std::string_view::npos;
}

/// Whether each part between slashes is one that a path keeps when it is normalised.
bool plain_path(std::string_view name) {
  while (true) {
    const size_t end = std::min(name.find('/'), name.size());
    const std::string_view part = name.substr(0, end);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == name.size()) return true;
    name.remove_prefix(end + 1);
  }
}

}  // namespace

std::string mlflow_name(std::string_view name) {
  const bool path = plain_path(name);
  if (path && name.size() <= kLongestName && std::all_of(name.begin(), name.end(), allowed)) return std::string(name);
  std::string mapped(name.substr(0, kKeptOfLongName));
  for (char& c : mapped)
    if (!allowed(c) || (c == '/' && !path)) c = '_';
  // A long name may have been cut behind a slash.
  return fmt::format("{}-{:016x}", mapped, XXH3_64bits(name.data(), name.size()));
}

std::string mlflow_text(std::string_view text, size_t bytes) {
  constexpr std::string_view kMore = "...";
  // nlohmann's writer knows what is UTF-8 and replaces the rest.
  std::string valid =
      nlohmann::json::parse(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (valid.size() <= bytes) return valid;
  size_t end = bytes - kMore.size();
  while (end > 0 && (static_cast<unsigned char>(valid[end]) & 0xC0) == 0x80) --end;
  return valid.substr(0, end).append(kMore);
}

}  // namespace levin
