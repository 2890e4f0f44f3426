#pragma once

#include <map>
#include <string>
#include <utility>

namespace levin {

/// Metrics by name.
class MetricMap : public std::map<std::string, double> {
 public:
  using map::map;
  MetricMap() = default;
  MetricMap(map values) : map(std::move(values)) {}  // NOLINT: one as good as the other

  /// Returns the metric of that name. Throws std::out_of_range naming those there are.
  double& at(const std::string& name);
  const double& at(const std::string& name) const;
};

}  // namespace levin
