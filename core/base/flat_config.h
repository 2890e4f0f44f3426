#pragma once

#include <levin/core/base/config.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// Configuration as a list of dotted paths, as on the command line, each with its value as one line of YAML.
using FlatConfig = std::vector<std::pair<std::string, std::string>>;

/// Flattens a configuration. Members of a list of names with options get paths by name
/// (`trainer.callbacks.early_stopping.patience`), the second of the same name `NAME#2`; any other list is one value.
FlatConfig flatten(const Config& config);

/// One path and its values in several configurations.
struct FlatConfigRow {
  std::string path;
  std::vector<std::optional<std::string>> values;  ///< one for each configuration; nothing where it lacks the path
  bool differs = false;
};

/// Returns a row for each path, in order of first appearance.
std::vector<FlatConfigRow> compare_configs(const std::vector<FlatConfig>& configurations);

}  // namespace levin
