#include <levin/core/sweep/settings.h>

#include <levin/core/base/error.h>
#include <levin/core/base/schema.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <system_error>
#include <utility>

namespace levin::sweep {
namespace {

/// Whether the text, without quotation marks, is more than text to YAML.
bool has_yaml_type(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return text.empty() || text == "null" || text == "~" || text == "true" || text == "false" ||
         (error == std::errc() && end == text.data() + text.size());
}

/// One text for configurations that mean the same, where options with a type have its form already: whatever the order
/// of keys and, where the text alone decides, the quotation marks. `is_trainers`: of the trainer's options it always
/// does.
std::string meaning_text(const Config& node, bool is_trainers = false) {
  if (node.is_sequence()) {
    std::string text = "[";
    for (const Config& item : node.items()) text += meaning_text(item, is_trainers) + ",\n";
    return text + "]";
  }
  if (node.is_mapping()) {
    std::map<std::string, std::string> texts;
    for (const auto& entry : node.entries())
      texts[entry.key] = meaning_text(entry.value, is_trainers || entry.key == "trainer");
    std::string text = "{";
    for (const auto& [key, value] : texts) text += key + ":\n" + value + ",\n";
    return text + "}";
  }
  if (node.is_null()) return "null";
  return node.quoted() && !is_trainers && has_yaml_type(node.text()) ? node.to_flow() : "'" + node.text();
}

}  // namespace

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

SettingMeanings::SettingMeanings(Resolve resolve) : resolve_(std::move(resolve)) {}

size_t SettingMeanings::number(const Settings& settings) {
  std::string written;
  for (const auto& [option, value] : settings) written += option + '=' + value.to_flow() + '\n';
  const auto [known, is_new] = by_text_.try_emplace(written);
  if (!is_new) return known->second;
  std::string meant = written;
  try {
    const TypedFormScope typed;
    meant = meaning_text(resolve_(settings));
  } catch (const ConfigError&) {  // of what is refused, with its place, when the run is looked at
  }
  return known->second = by_meaning_.try_emplace(meant, by_meaning_.size()).first->second;
}

bool SettingMeanings::has(const Settings& run, const Setting& wanted) {
  // What is named, or what it is an option of, decides of which type it is.
  const auto decides = [&](const std::string& option) {
    return option.ends_with(".name") || option.find('.') == std::string::npos ||
           wanted.option.starts_with(option + ".");
  };
  Settings settings;
  for (const Setting& setting : run)
    if (setting.option == wanted.option || decides(setting.option)) settings.push_back(setting);
  Settings as_wanted = settings;
  set_setting(as_wanted, wanted.option, wanted.value);
  return number(settings) == number(as_wanted);
}

}  // namespace levin::sweep
