#pragma once

#include <levin/core/cli/config_names.h>

#include <string>
#include <vector>

namespace levin {

/// Returns the script that makes a shell, "bash" or "zsh", complete commands, options and names of a program:
/// `source <(PROGRAM --print_completion bash)`. Throws ConfigError for another shell.
std::string completion_script(const std::string& shell, const std::string& program,
                              const std::vector<std::string>& commands, const ConfigNames& names);

}  // namespace levin
