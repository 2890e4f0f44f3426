#include <levin/core/metrics/metric_reference.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/metric.h>

#include <fmt/format.h>

namespace levin::metrics {

MetricReference::MetricReference(Metric& metric) : metric_(&metric), alive_(metric.lifetime()) {}

Metric* MetricReference::get(std::string_view logged_as) const {
  if (is_gone())
    throw Error("log",
                fmt::format("the metric logged as '{}' was destroyed or moved before the end of the epoch, which "
                            "computes it; hint: make it a member of the module",
                            logged_as));
  return metric_;
}

}  // namespace levin::metrics
