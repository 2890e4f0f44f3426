#include <levin/core/sweep/settings.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <system_error>
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

std::string describe(const Settings& settings) {
  std::string text;
  for (const auto& [option, value] : settings) text += (text.empty() ? "" : ", ") + option + "=" + value_text(value);
  return text;
}

std::string value_text(const Config& value) { return value.is_scalar() ? value.text() : value.to_flow(); }

std::string canonical_text(const Config& value) {
  const std::string text = value_text(value);
  if (!value.is_scalar() || value.quoted()) return text;
  const auto parse = [&](auto& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
  };
  int64_t whole = 0;
  if (parse(whole)) return std::to_string(whole);
  double number = 0;
  if (!parse(number)) return text;
  const bool is_whole = std::abs(number) < 0x1p63 && number == std::trunc(number);
  return is_whole ? std::to_string(static_cast<int64_t>(number)) : fmt::format("{}", number);
}

std::string canonical_text(const Settings& settings) {
  std::vector<std::string> texts;
  for (const auto& [option, value] : settings) texts.push_back(option + "=" + canonical_text(value) + '\0');
  std::sort(texts.begin(), texts.end());
  return join(texts, "");
}

}  // namespace levin::sweep
