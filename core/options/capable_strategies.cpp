#include <levin/core/options/capable_strategies.h>

#include <levin/core/base/error.h>
#include <levin/core/options/registries.h>

#include <vector>

namespace levin {

std::string capable_strategies(bool StrategyCapabilities::*capability) {
  std::vector<std::string> names;
  for (const auto& item : registries().strategies.items()) {
    try {
      if (item.make(Config::null(), item.name)->capabilities().*capability) names.push_back(item.name);
    } catch (const Error&) {
      // A program's own strategy may have options that must be given; nothing is known of it then.
    }
  }
  return join(names);
}

}  // namespace levin
