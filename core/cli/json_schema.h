#pragma once

#include <levin/core/cli/config_names.h>

#include <string>

namespace levin {

/// Returns the JSON schema (draft 7) of a program's configuration, with which editors complete and check its YAML.
std::string json_schema(const ConfigNames& names);

}  // namespace levin
