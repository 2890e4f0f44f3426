#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/events.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

/// Helpers of callbacks that monitor a metric.
namespace levin {

class Trainer;

/// Parses "min" or "max". `option` is the dotted name for the ConfigError that any other word gets.
MonitorMode parse_monitor_mode(const std::string& word, std::string_view option);

/// Whether `value` beats `other`. NaN beats nothing, and everything else beats NaN.
bool is_better(double value, double other, MonitorMode mode);

/// Returns rank 0's value on every rank, so that callbacks decide alike everywhere. A collective.
std::string from_rank_zero(Trainer& trainer, const std::string& value);
/// A metric that a callback acts on, as rank 0 knows it.
///
/// A value stays when nobody logs a newer one: a validation that runs every second epoch, a step that logs now and
/// then. Who acts on it keeps the moment of the value that it acted on last, and acts on later ones only.
struct MonitoredValue {
  double value = 0;
  int64_t moment = 0;  ///< see Trainer::moment_of_metric; now for what is no metric of the trainer
};
/// Returns nothing for a name that was never logged on rank 0. A collective.
std::optional<MonitoredValue> monitored_value(Trainer& trainer, const std::string& monitor,
                                              const std::map<std::string, double>& logged);

/// Makes the error for a monitored metric that nobody logged, which names those there are, and the nearest.
Error missing_metric_error(std::string_view component, const std::string& monitor,
                           const std::map<std::string, double>& logged);

}  // namespace levin
