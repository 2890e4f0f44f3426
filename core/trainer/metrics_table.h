#pragma once

#include <levin/core/metrics/metric_map.h>

#include <string>
#include <vector>

namespace levin {

/// Returns a metric's value in four digits.
std::string metric_text(double value);

/// Returns a table with a row for each metric and a column for each loader.
std::string metrics_table(const std::vector<MetricMap>& results);

}  // namespace levin
