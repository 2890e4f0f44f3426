#pragma once

#include <map>
#include <string>

namespace levin {

/// Returns the variables of this process's environment that set an option, by name: `LEVIN_TRAINER__MAX_EPOCHS`.
/// LEVIN_JOB_SECRET and the like, without two underscores, are no options.
std::map<std::string, std::string> setting_variables();

}  // namespace levin
