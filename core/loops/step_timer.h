#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>

namespace levin {

/// Times ordinary and replayed steps until there are enough to say which are faster. The shortest step of each kind
/// counts, because a step is never shorter than its work, and longer whenever the machine is busy.
class StepTimer {
 public:
  enum class Kind { kOrdinary, kReplayed };

  void begin() { began_ = Clock::now(); }
  /// Ends the step begun; `counts`: it did nothing else.
  void end(Kind kind, bool counts) {
    if (!counts) return;
    Times& times = kind == Kind::kOrdinary ? ordinary_ : replayed_;
    ++times.steps;
    times.shortest = std::min(times.shortest, std::chrono::duration<double>(Clock::now() - began_).count());
  }
  bool has_enough(Kind kind) const { return (kind == Kind::kOrdinary ? ordinary_ : replayed_).steps >= kSteps; }
  /// Seconds of the shortest step.
  double shortest(Kind kind) const { return (kind == Kind::kOrdinary ? ordinary_ : replayed_).shortest; }
  /// Whether replaying pays: a gain within the noise is none.
  bool replaying_is_faster() const { return replayed_.shortest < kGain * ordinary_.shortest; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kSteps = 8;
  static constexpr double kGain = 0.99;

  struct Times {
    size_t steps = 0;
    double shortest = std::numeric_limits<double>::infinity();
  };
  Clock::time_point began_;
  Times ordinary_;
  Times replayed_;
};

}  // namespace levin
