#include <levin/callbacks/monitor.h>

#include <levin/core/interfaces/strategy.h>
#include <levin/core/trainer/trainer.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <vector>

namespace levin {

MonitorMode parse_monitor_mode(const std::string& word, std::string_view option) {
  if (word == "min") return MonitorMode::kMin;
  if (word == "max") return MonitorMode::kMax;
  throw ConfigError(fmt::format("{} must be one of min, max; got '{}'", option, word));
}

bool is_better(double value, double other, MonitorMode mode) {
  if (std::isnan(value)) return false;
  if (std::isnan(other)) return true;
  return mode == MonitorMode::kMin ? value < other : value > other;
}

Error missing_metric_error(std::string_view component, const std::string& monitor,
                           const std::map<std::string, double>& logged) {
  std::vector<std::string> names;
  for (const auto& [name, value] : logged) names.push_back(name);
  const std::string found = names.empty() ? "; got no metric at all" : valid_names_hint(monitor, names);
  return Error(component,
               fmt::format("the monitored metric '{}' was not logged{}; hint: log(\"{}\", ...) in a step of the "
                           "module; epoch means of training_step are there at the epoch's end only",
                           monitor, found, monitor));
}

std::string from_rank_zero(Trainer& trainer, const std::string& value) {
  return trainer.world_size() == 1 ? value : trainer.strategy().collective().broadcast_bytes(value, 0);
}

std::optional<double> monitored_value(Trainer& trainer, const std::string& monitor,
                                      const std::map<std::string, double>& logged) {
  const auto metric = logged.find(monitor);
  if (trainer.world_size() == 1) return metric == logged.end() ? std::nullopt : std::optional(metric->second);
  // A hexadecimal number is exact, and reads back "nan" and "inf" as well.
  const std::string text = from_rank_zero(trainer, metric == logged.end() ? "" : fmt::format("{:a}", metric->second));
  return text.empty() ? std::nullopt : std::optional(std::strtod(text.c_str(), nullptr));
}

}  // namespace levin
