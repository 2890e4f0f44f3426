#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/events.h>

#include <map>
#include <string>
#include <string_view>

/// What callbacks that monitor a metric have in common.
namespace levin {

/// "min" or "max" as an enum; `option` is the dotted name for the ConfigError that any other word gets.
MonitorMode parse_monitor_mode(const std::string& word, std::string_view option);

/// Whether `value` beats `other`. NaN beats nothing, and everything else beats NaN.
bool is_better(double value, double other, MonitorMode mode);

/// The error for a monitored metric that nobody logged: names those there are, and the nearest.
Error missing_metric_error(std::string_view component, const std::string& monitor,
                           const std::map<std::string, double>& logged);

}  // namespace levin
