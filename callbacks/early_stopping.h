#pragma once

#include <levin/callbacks/monitor_moment.h>
#include <levin/callbacks/stopping_rule.h>
#include <levin/core/base/schema.h>
#include <levin/core/interfaces/callback.h>

#include <cstdint>
#include <optional>
#include <string>

namespace levin {

/// Options of EarlyStopping, explained in describe().
struct EarlyStoppingOptions {
  std::string monitor = {};
  double min_delta = 0;
  int64_t patience = 3;
  std::string mode = "min";
  std::optional<double> stopping_threshold = {};
  std::optional<double> divergence_threshold = {};
  bool check_finite = true;
  /// Default: see MonitorMoment
  std::optional<bool> check_on_train_epoch_end = {};
  bool verbose = false;
  bool strict = true;

  static void describe(Schema<EarlyStoppingOptions>& schema);
};

/// Ends training when a metric has stopped getting better. Where min_epochs or min_steps do not allow that yet, what
/// counts is how the metric does when they are reached. Looks at each value once.
class EarlyStopping final : public Callback {
 public:
  using Options = EarlyStoppingOptions;

  /// Throws ConfigError without a metric to watch.
  explicit EarlyStopping(const Options& options = {});

  std::string state_key() const override;
  bool runs_after_metrics() const override { return true; }
  std::optional<double> best_score() const { return rule_.best_score(); }
  /// Number of looks at the metric since it last improved.
  int64_t wait_count() const { return rule_.wait_count(); }
  /// The 0-based epoch in which it asked to stop; nothing when it did not, or has taken it back since.
  std::optional<int64_t> stopped_epoch() const { return stopped_epoch_; }

  void setup(Trainer& trainer, Module& module, Stage stage) override;
  void on_train_start(Trainer& trainer, Module& module) override;
  void on_train_batch_end(Trainer& trainer, Module& module, const StepOutput& output, const Batch& batch,
                          int64_t batch_idx) override;
  void on_validation_end(Trainer& trainer, Module& module) override;
  void on_train_epoch_end(Trainer& trainer, Module& module) override;
  void on_train_end(Trainer& trainer, Module& module) override;

  State state_dict() const override;
  /// Restores counters and values; what they ask for follows from the limits of the options.
  void load_state_dict(const State& state) override;

 private:
  void check(Trainer& trainer, bool metric_required);
  void ask(Trainer& trainer);

  const Options options_;
  MonitorMoment moment_;
  StoppingRule rule_;
  std::optional<int64_t> stopped_epoch_;
  int64_t seen_moment_ = -1;  ///< of the value that it looked at last; see MonitoredValue
};

}  // namespace levin
