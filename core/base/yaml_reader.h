#pragma once

#include <levin/core/base/config.h>

#include <string>

namespace levin {

/// Implements Config::parse.
Config read_yaml(const std::string& text, const Origin& origin, bool fixed_origin);

}  // namespace levin
