#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/registry.h>
#include <levin/core/cli/cli_arguments.h>
#include <levin/core/cli/config_names.h>

#include <string>
#include <vector>

namespace levin {

/// Merges the files in order, then the settings of the command line. Where a later source names another model, data
/// module or strategy than an earlier one, the earlier one's options go; a mapping of callbacks or loggers changes or
/// adds members of an earlier list by name. Throws ConfigError for unknown keys of the top level and for what cannot be
/// read.
/// `defaults`: YAML of the program's own, below all files.
Config merge_sources(const std::vector<std::string>& files, const std::vector<CliArguments::Setting>& settings,
                     const ConfigNames& names, const std::string& defaults = "");

/// Returns the whole configuration with every default: seed, model, data, trainer, ckpt, and plan, sweep, export,
/// inspect and the sections of the program's own commands where they were given. `model` and `data` are `{name: ...,
/// option: ...}`, or left out where the program has none. Checks names, keys, types and ranges without making any
/// object. Throws ConfigError with place and nearest valid name.
Config resolve_config(const Config& merged, const ConfigNames& names);

/// Makes the object of a resolved section such as `model`.
template <class Base>
std::shared_ptr<Base> make_section(const Registry<Base>& registry, const Config& section, const std::string& path) {
  Config options = section;
  options.erase("name");
  const Config& name = *section.find("name");
  return registry.make(name.text(), options, path, name.origin());
}

}  // namespace levin
