#include <levin/core/sweep/settings.h>

#include <levin/core/base/error.h>
#include <levin/core/base/schema.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin::sweep {
const Setting* find_setting(const Settings& settings, const std::string& option) {
  const auto found =
      std::find_if(settings.begin(), settings.end(), [&](const Setting& setting) { return setting.option == option; });
  return found == settings.end() ? nullptr : &*found;
}

void set_setting(Settings& settings, const std::string& option, Config value) {
  for (Setting& setting : settings) {
    if (setting.option != option) continue;
    setting.value = std::move(value);
    return;
  }
  settings.push_back({option, std::move(value)});
}

Settings without_seed(Settings settings) {
  std::erase_if(settings, [](const Setting& setting) { return setting.option == "seed"; });
  return settings;
}

std::string describe(const Settings& settings) {
  std::string text;
  for (const auto& [option, value] : settings) text += (text.empty() ? "" : ", ") + option + "=" + value_text(value);
  return text;
}

std::string value_text(const Config& value) { return value.is_scalar() ? value.text() : value.to_flow(); }

SettingValues::SettingValues(Resolve resolve) : resolve_(std::move(resolve)) {}

size_t SettingValues::number(const Settings& run, const Setting& setting) {
  // What is named, or what it is an option of, decides of which type it is.
  const auto decides = [&](const std::string& option) {
    return option != setting.option && (option.ends_with(".name") || option.find('.') == std::string::npos ||
                                        setting.option.starts_with(option + "."));
  };
  Settings settings;
  for (const Setting& other : run)
    if (decides(other.option)) settings.push_back(other);
  settings.push_back(setting);
  std::string written;
  for (const auto& [option, value] : settings) written += option + '=' + value.to_flow() + '\n';
  const auto [known, is_new] = by_text_.try_emplace(written);
  if (!is_new) return known->second;
  std::string meant = written;
  try {
    const TypedFormScope typed;
    meant = resolve_(settings).to_flow();
  } catch (const ConfigError&) {  // of a value that is refused, with its place, when the run is looked at
  }
  return known->second = by_meaning_.try_emplace(meant, by_meaning_.size()).first->second;
}

std::string SettingValues::key(const Settings& run) {
  std::vector<std::string> texts;
  for (const Setting& setting : run) texts.push_back(fmt::format("{}={}", setting.option, number(run, setting)));
  std::sort(texts.begin(), texts.end());
  return join(texts, "\n");
}

}  // namespace levin::sweep
