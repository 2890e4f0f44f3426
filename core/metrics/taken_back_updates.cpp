#include <levin/core/metrics/taken_back_updates.h>

#include <levin/core/metrics/metric.h>

#include <algorithm>

namespace levin::metrics {

TakenBackUpdates::~TakenBackUpdates() {
  for (const auto& [metric, state] : kept_)
    if (!metric.is_gone()) metric.get("")->load_state_dict(state);
}

void TakenBackUpdates::before_change(Metric& metric) {
  const bool is_kept = std::ranges::any_of(kept_, [&](const Kept& kept) { return kept.metric.refers_to(metric); });
  if (!is_kept) kept_.push_back({.metric = MetricReference(metric), .state = metric.state_dict()});
}

}  // namespace levin::metrics
