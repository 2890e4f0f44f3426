#include <levin/loggers/logger_place.h>

#include <algorithm>
#include <filesystem>

namespace levin {

bool is_folder_name(const std::string& text) {
  return !text.empty() && text != "." && text != ".." && text.find('/') == std::string::npos;
}

bool stays_below(const std::string& path) {
  const std::filesystem::path given(path);
  return given.is_relative() && std::none_of(given.begin(), given.end(), [](const auto& part) { return part == ".."; });
}

}  // namespace levin
