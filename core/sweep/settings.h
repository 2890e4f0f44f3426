#pragma once

#include <levin/core/base/config.h>

#include <cstddef>
#include <functional>
#include <string>
#include <unordered_map>
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
/// Returns what runs that differ in nothing but the seed have in common.
Settings without_seed(Settings settings);
/// "model.lr=0.001, seed=3"
std::string describe(const Settings& settings);
/// A value as a table shows it: the text of a scalar, anything else as a line of YAML.
std::string value_text(const Config& value);
/// Makes the whole configuration of a run. Throws ConfigError.
using Resolve = std::function<Config(const Settings&)>;

/// Tells which values mean the same: the options' types decide. 0.1 and 1e-1 are one number, and two texts.
class SettingValues {
 public:
  explicit SettingValues(Resolve resolve);
  /// Returns one number for all values of the option, as one of the run's, that mean the same.
  size_t number(const Settings& run, const Setting& setting);
  /// Returns one text for all runs with the same settings, in whatever order.
  std::string key(const Settings& run);

 private:
  const Resolve resolve_;
  std::unordered_map<std::string, size_t> by_text_;
  std::unordered_map<std::string, size_t> by_meaning_;
};

}  // namespace levin::sweep
