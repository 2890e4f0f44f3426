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

Config named_form(const Config& node) {
  if (!TypedFormScope::is_active() || node.is_null()) return node;
  try {
    const auto [name, options] = split_named_config(node, "", "");
    Config form = Config::mapping();
    form.set(name.text(), options.is_null() ? Config::mapping() : options);
    return form;
  } catch (const ConfigError&) {
    return node;
  }
}

}  // namespace levin::detail
