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

bool StoppingRule::is_at_threshold(double value) const {
  return limits_.stopping_threshold && is_better(value, *limits_.stopping_threshold, limits_.mode);
}

/// Such a value is no news of how training improves.
bool StoppingRule::is_beyond_limits(double value) const {
  return (limits_.check_finite && !std::isfinite(value)) ||
         (limits_.divergence_threshold && is_better(*limits_.divergence_threshold, value, limits_.mode));
}

bool StoppingRule::observe(double value) {
  last_score_ = value;
  if (is_beyond_limits(value)) return false;
  if (improves(value)) {
    best_score_ = value;
    wait_count_ = 0;
    return true;
  }
  ++wait_count_;
  return is_at_threshold(value);
}

std::string StoppingRule::stop_reason() const {
  if (!last_score_) return {};
  const std::string best = best_score_ ? fmt::format("{:.6g}", *best_score_) : "none";
  if (limits_.check_finite && !std::isfinite(*last_score_))
    return fmt::format("{} = {} is not finite (best so far: {})", metric_, *last_score_, best);
  if (is_at_threshold(*last_score_))
    return fmt::format("{} = {:.6g} reached the stopping threshold {}", metric_, *last_score_,
                       *limits_.stopping_threshold);
  if (is_beyond_limits(*last_score_))
    return fmt::format("{} = {:.6g} is beyond the divergence threshold {}", metric_, *last_score_,
                       *limits_.divergence_threshold);
  if (wait_count_ < limits_.patience) return {};
  return fmt::format("{} did not improve in the last {} values (best: {})", metric_, wait_count_, best);
}

}  // namespace levin
