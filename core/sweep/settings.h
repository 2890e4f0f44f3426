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

/// Tells which settings mean the same in the whole configuration: the options' types decide, so that 0.1 and 1e-1 are
/// one number and two texts, and a setting that says what the configuration says anyway is none.
class SettingMeanings {
 public:
  explicit SettingMeanings(Resolve resolve);
  /// Returns one number for all settings that mean the same.
  size_t number(const Settings& settings);
  /// Whether the option has this value in a run, by its settings or by the configuration.
  bool has(const Settings& run, const Setting& wanted);

 private:
  const Resolve resolve_;
  std::unordered_map<std::string, size_t> by_text_;
  std::unordered_map<std::string, size_t> by_meaning_;
};

}  // namespace levin::sweep
