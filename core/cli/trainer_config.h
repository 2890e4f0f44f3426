#pragma once

#include <levin/core/base/config.h>

#include <string>

namespace levin {

/// Returns the section `trainer` of a program's YAML file as the program reads it; empty where there is none. The
/// file's model and data need not be known here. Throws ConfigError for a file that no program would read.
Config load_trainer_config(const std::string& path);

}  // namespace levin
