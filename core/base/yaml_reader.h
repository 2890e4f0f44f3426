#pragma once

#include <levin/core/base/config.h>

#include <string>

namespace levin {

/// What Config::parse does.
Config read_yaml(const std::string& text, const Origin& origin, bool fixed_origin);

}  // namespace levin
