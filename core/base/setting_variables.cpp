#include <levin/core/base/setting_variables.h>

#include <unistd.h>

#include <string_view>

namespace levin {

std::map<std::string, std::string> setting_variables() {
  std::map<std::string, std::string> found;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (name.size() < text.size() && name.starts_with("LEVIN_") && name.find("__") != name.npos)
      found.emplace(name, text.substr(name.size() + 1));
  }
  return found;
}

}  // namespace levin
