#pragma once

#include <levin/core/base/events.h>

#include <cstdint>
#include <optional>
#include <string>

namespace levin {

/// Decides from the values of a metric, one after another, when training should stop. It knows no trainer.
class StoppingRule {
 public:
  struct Limits {
    MonitorMode mode = MonitorMode::kMin;
    double min_delta = 0;                             ///< an improvement by no more than this is none
    int64_t patience = 3;                             ///< values without an improvement that end training
    std::optional<double> stopping_threshold = {};    ///< training ends when the value is better than this
    std::optional<double> divergence_threshold = {};  ///< training ends when the value is worse than this
    bool check_finite = true;                         ///< training ends on NaN and infinity
  };

  /// `metric`: its name, for the reasons.
  StoppingRule(std::string metric, const Limits& limits) : metric_(std::move(metric)), limits_(limits) {}

  /// Takes the next value; returns whether it is an improvement.
  bool observe(double value);
  /// Why training should stop after the values so far; empty: it should go on.
  std::string stop_reason() const;

  /// Values without an improvement since the best one.
  int64_t wait_count() const { return wait_count_; }
  /// Best value so far; nothing before the first that is a number.
  std::optional<double> best_score() const { return best_score_; }
  /// Value that came last.
  std::optional<double> last_score() const { return last_score_; }
  void restore(int64_t wait_count, std::optional<double> best_score, std::optional<double> last_score) {
    wait_count_ = wait_count;
    best_score_ = best_score;
    last_score_ = last_score;
  }

 private:
  bool improves(double value) const;
  bool is_at_threshold(double value) const;
  bool is_beyond_limits(double value) const;

  const std::string metric_;
  const Limits limits_;
  int64_t wait_count_ = 0;
  std::optional<double> best_score_;
  std::optional<double> last_score_;
};

}  // namespace levin
