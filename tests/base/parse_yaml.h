#pragma once

#include <levin/core/base/config.h>

#include <string>

namespace levin {

inline Config parse(const std::string& yaml) { return Config::parse(yaml, {.source = "test.yaml"}); }

}  // namespace levin
