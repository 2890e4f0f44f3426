#pragma once

#include <levin/core/base/config.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// A configuration as a list: dotted paths, as on the command line, and the values there as one line of YAML.
using FlatConfig = std::vector<std::pair<std::string, std::string>>;

/// Members of a list of names with options are reached by name (`trainer.callbacks.early_stopping.patience`), a second
/// one of a name by `NAME#2`; any other list is one value.
FlatConfig flatten(const Config& config);

/// A path in several configurations.
struct FlatConfigRow {
  std::string path;
  std::vector<std::optional<std::string>> values;  ///< one a configuration; nothing where it does not have the path
  bool differs = false;
};

/// All paths in order of first appearance.
std::vector<FlatConfigRow> compare_configs(const std::vector<FlatConfig>& configurations);

}  // namespace levin
