#pragma once

#include <levin/callbacks/learning_rate_sweep.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/tuner.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Options of LearningRateFinder, explained in describe().
struct LearningRateFinderOptions {
  double min_lr = 1e-8;
  double max_lr = 1;
  int64_t num_training_steps = 100;
  std::string mode = "exponential";
  std::optional<double> early_stop_threshold = 4.0;
  bool update_attr = true;
  std::string attr_name = {};

  static void describe(Schema<LearningRateFinderOptions>& schema);
};

/// Before a fit: trains some steps with a learning rate that rises from one to the next, suggests the rate at which the
/// loss fell most steeply (see LearningRateSweep), takes those steps back (see DryRun) and trains with it. Learning
/// rates are those that configure_optimizers gives the first parameter group; other groups keep their proportions, and
/// schedulers start from the suggestion. A fit that resumes keeps the learning rate of its checkpoint.
///
/// Writes learning_rate_finder.svg and .csv into the run's folder.
class LearningRateFinder final : public Tuner {
 public:
  using Options = LearningRateFinderOptions;

  explicit LearningRateFinder(const Options& options = {});

  /// Suggested learning rate; nothing before a search, or when it found none.
  std::optional<double> suggestion() const { return suggestion_; }
  /// Points of the last sweep; losses are means over all ranks.
  const std::vector<LearningRateSweep::Point>& points() const { return points_; }
  std::string report() const override { return report_; }

  void on_fit_start(Trainer& trainer, Module& module) override;

  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  bool can_search(Trainer& trainer, const Module& module) const;
  /// Runs the sweep; false when a signal ended it.
  bool sweep_rates(Trainer& trainer, LearningRateSweep& sweep) const;
  std::string write_files(Trainer& trainer, const LearningRateSweep& sweep) const;
  std::string how_to_set(const Module& module) const;

  const Options options_;
  std::optional<double> suggestion_;
  std::vector<LearningRateSweep::Point> points_;
  std::string report_;
};

}  // namespace levin
