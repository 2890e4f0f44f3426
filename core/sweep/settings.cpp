#include <levin/core/sweep/settings.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace levin::sweep {
namespace {

std::optional<double> number_of(const Config& value) {
  if (!value.is_scalar() || value.quoted()) return {};
  const std::string& text = value.text();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
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

std::string describe(const Settings& settings) {
  std::string text;
  for (const auto& [option, value] : settings) text += (text.empty() ? "" : ", ") + option + "=" + value_text(value);
  return text;
}

std::string value_text(const Config& value) { return value.is_scalar() ? value.text() : value.to_flow(); }

bool same_value(const Config& a, const Config& b) {
  const auto first = number_of(a);
  const auto second = number_of(b);
  return first && second ? *first == *second : value_text(a) == value_text(b);
}

}  // namespace levin::sweep
