#pragma once

#include <levin/core/base/config.h>

#include <string>

namespace levin {

/// Implements Config::parse.
Config read_yaml(const std::string& text, const Origin& origin, bool fixed_origin);

/// Throws ConfigError where `node` is, or has in it, a list, mapping or quotation of a command line that is broken. It
/// is unquoted text until then, which no YAML gives, so that an option that is text can have it.
void refuse_broken_yaml(const Config& node);

}  // namespace levin
