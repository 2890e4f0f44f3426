#pragma once

#include <levin/core/base/schema.h>

#include <string>

namespace levin {

/// Returns whether a text is the name of one folder.
bool is_folder_name(const std::string& text);
/// Returns whether a text is a path that stays below the folder that it is appended to.
bool stays_below(const std::string& path);

/// Describes the option `prefix` of a logger.
template <class Options>
void describe_prefix(Schema<Options>& schema) {
  schema.field("prefix", &Options::prefix, "prefix of all logged names: PREFIX-loss");
}

/// Describes the options of a logger's own folder, a LoggerFolder.
template <class Options>
void describe_folder(Schema<Options>& schema) {
  schema.field(
      "save_dir", &Options::save_dir,
      "root of the folder save_dir/name/version; empty: default_root_dir. Without all three: the run's folder");
  schema.field("name", &Options::name, "folder below save_dir; empty: none")
      .require("a relative path without ..", stays_below);
  schema.field("version", &Options::version, "folder below name, or the N of version_N; empty: a new version_N")
      .require("a number or the name of one folder",
               [](const std::string& version) { return version.empty() || is_folder_name(version); });
}

}  // namespace levin
