#include <levin/core/base/spec.h>

namespace levin::detail {

std::pair<Config, Config> split_named_config(const Config& node, const std::string& path, const std::string& kind) {
  if (node.is_scalar()) return {node, Config::null(node.origin())};
  if (node.is_mapping()) {
    if (const Config* name = node.find("name"); name != nullptr && name->is_scalar()) {
      Config options = node;
      options.erase("name");
      return {*name, options};
    }
    if (node.entries().size() == 1) {
      const auto& entry = node.entries().front();
      return {Config::scalar(entry.key, false, entry.origin), entry.value};
    }
  }
  throw_wrong_type(node, path, "the name of a " + kind + ", `{name: ..., option: value}` or `{NAME: {option: value}}`");
}

}  // namespace levin::detail
