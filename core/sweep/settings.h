#pragma once

#include <levin/core/base/config.h>

#include <string>
#include <vector>

namespace levin::sweep {

/// An option as on the command line: `model.lr` and its value.
struct Setting {
  std::string option;  ///< dotted
  Config value;
};
using Settings = std::vector<Setting>;

/// The setting of this option, or nullptr.
const Setting* find_setting(const Settings& settings, const std::string& option);
/// Changes the setting of the option, or adds it at the end.
void set_setting(Settings& settings, const std::string& option, Config value);
/// "model.lr=0.001, seed=3"
std::string describe(const Settings& settings);
/// A value as a table shows it: the text of a scalar, anything else as a line of YAML.
std::string value_text(const Config& value);
/// Returns one text for all values that mean the same: 0.1 and 1e-1 do.
std::string canonical_text(const Config& value);
/// The same for settings, in whatever order.
std::string canonical_text(const Settings& settings);

}  // namespace levin::sweep
