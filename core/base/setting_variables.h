#pragma once

#include <map>
#include <string>
#include <vector>

namespace levin {

/// Returns the keys of the top level that the configuration of every program has.
const std::vector<std::string>& top_level_keys();

/// Returns the variables of this process's environment that set an option, by name: `LEVIN_TRAINER__MAX_EPOCHS`, and
/// `LEVIN_SEED` or a whole section. LEVIN_JOB_SECRET and the like, without two underscores, are no options.
std::map<std::string, std::string> setting_variables();

}  // namespace levin
