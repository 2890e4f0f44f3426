#include <levin/callbacks/stopping_rule.h>

#include <levin/callbacks/monitor.h>

#include <fmt/format.h>

#include <cmath>

namespace levin {

bool StoppingRule::improves(double value) const {
  if (!best_score_) return !std::isnan(value);
  const double step = limits_.mode == MonitorMode::kMin ? limits_.min_delta : -limits_.min_delta;
  return is_better(value + step, *best_score_, limits_.mode);
}

StoppingRule::Verdict StoppingRule::observe(double value) {
  const std::string best = best_score_ ? fmt::format("{:.6g}", *best_score_) : "none";
  if (limits_.check_finite && !std::isfinite(value))
    return {.stop_reason = fmt::format("{} = {} is not finite (best so far: {})", metric_, value, best)};
  if (limits_.stopping_threshold && is_better(value, *limits_.stopping_threshold, limits_.mode)) {
    if (improves(value)) best_score_ = value;
    return {.improved = true,
            .stop_reason = fmt::format("{} = {:.6g} reached the stopping threshold {}", metric_, value,
                                       *limits_.stopping_threshold)};
  }
  if (limits_.divergence_threshold && is_better(*limits_.divergence_threshold, value, limits_.mode))
    return {.stop_reason = fmt::format("{} = {:.6g} is beyond the divergence threshold {}", metric_, value,
                                       *limits_.divergence_threshold)};
  if (improves(value)) {
    best_score_ = value;
    wait_count_ = 0;
    return {.improved = true};
  }
  if (++wait_count_ < limits_.patience) return {};
  return {.stop_reason =
              fmt::format("{} did not improve in the last {} values (best: {})", metric_, wait_count_, best)};
}

}  // namespace levin
