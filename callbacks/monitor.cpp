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

std::optional<MonitoredValue> monitored_value(Trainer& trainer, const std::string& monitor,
                                              const std::map<std::string, double>& logged) {
  std::optional<MonitoredValue> own;
  if (const auto metric = logged.find(monitor); metric != logged.end())
    own = {.value = metric->second, .moment = trainer.moment_of_metric(monitor).value_or(trainer.moment())};
  if (trainer.world_size() == 1) return own;
  // A hexadecimal number is exact, and reads back "nan" and "inf" as well.
  const std::string text = from_rank_zero(trainer, own ? fmt::format("{} {:a}", own->moment, own->value) : "");
  if (text.empty()) return std::nullopt;
  char* end = nullptr;
  const int64_t moment = std::strtoll(text.c_str(), &end, 10);
  return MonitoredValue{.value = std::strtod(end, nullptr), .moment = moment};
}

}  // namespace levin
