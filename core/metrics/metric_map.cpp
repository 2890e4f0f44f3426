#include <levin/core/metrics/metric_map.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <stdexcept>
#include <vector>

namespace levin {

double& MetricMap::at(const std::string& name) {
  return const_cast<double&>(std::as_const(*this).at(name));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

const double& MetricMap::at(const std::string& name) const {
  if (const auto found = find(name); found != end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, value] : *this) names.push_back(known);
  throw std::out_of_range(fmt::format("[metrics] there is no metric '{}'{}", name,
                                      names.empty() ? "; none was logged" : valid_names_hint(name, names)));
}

}  // namespace levin
