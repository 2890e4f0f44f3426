#include <levin/core/trainer/metrics_table.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace levin {

std::string metric_text(double value) {
  // The sign of a NaN means nothing.
  return std::isnan(value) ? "nan" : fmt::format("{:.4g}", value);
}

std::string metrics_table(const std::vector<MetricMap>& results) {
  std::set<std::string> names;
  for (const auto& loader : results)
    for (const auto& [name, value] : loader) names.insert(name);
  size_t name_width = 6;
  for (const auto& name : names) name_width = std::max(name_width, name.size());
  constexpr size_t kValueWidth = 12;

  std::string table = fmt::format("{:<{}}", "metric", name_width);
  for (size_t i = 0; i < results.size(); ++i)
    table += fmt::format("  {:>{}}", results.size() == 1 ? "value" : fmt::format("loader {}", i), kValueWidth);
  table += "\n" + std::string(name_width + results.size() * (kValueWidth + 2), '-') + "\n";
  for (const auto& name : names) {
    table += fmt::format("{:<{}}", name, name_width);
    for (const auto& loader : results) {
      const auto found = loader.find(name);
      table += fmt::format("  {:>{}}", found == loader.end() ? "" : metric_text(found->second), kValueWidth);
    }
    table += "\n";
  }
  return table;
}

}  // namespace levin
