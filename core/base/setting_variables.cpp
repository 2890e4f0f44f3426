#include <levin/core/base/setting_variables.h>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace levin {
const std::vector<std::string>& top_level_keys() {
  static const std::vector<std::string> keys = {"seed",    "model", "data", "adapters", "optimizer", "scheduler",
                                                "trainer", "ckpt",  "plan", "sweep",    "export",    "inspect"};
  return keys;
}

namespace {

bool is_top_level(std::string_view name) {
  return std::any_of(top_level_keys().begin(), top_level_keys().end(), [&](const std::string& key) {
    return std::equal(key.begin(), key.end(), name.begin(), name.end(),
                      [](char low, char high) { return std::toupper(static_cast<unsigned char>(low)) == high; });
  });
}

}  // namespace

std::map<std::string, std::string> setting_variables() {
  std::map<std::string, std::string> found;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    constexpr std::string_view kPrefix = "LEVIN_";
    if (name.size() < text.size() && name.starts_with(kPrefix) &&
        (name.find("__") != name.npos || is_top_level(name.substr(kPrefix.size()))))
      found.emplace(name, text.substr(name.size() + 1));
  }
  return found;
}

}  // namespace levin
