#pragma once

#include <levin/core/optim/scheduler.h>

#include <cstdint>
#include <string>

namespace levin::optim {

/// Options of ReduceOnPlateauScheduler, with the names and defaults of torch.optim.lr_scheduler.ReduceLROnPlateau.
struct ReduceOnPlateauOptions {
  std::string mode = "min";
  double factor = 0.1;
  int64_t patience = 10;
  double threshold = 1e-4;
  std::string threshold_mode = "rel";
  int64_t cooldown = 0;
  double min_lr = 0;
  double eps = 1e-8;

  static void describe(Schema<ReduceOnPlateauOptions>& schema);
};

/// Reduces the learning rate when a metric has stopped getting better. A metric that is NaN is not better.
class ReduceOnPlateauScheduler final : public Scheduler {
 public:
  using Options = ReduceOnPlateauOptions;
  explicit ReduceOnPlateauScheduler(const Options& options);

  bool needs_metric() const override { return true; }
  /// Throws levin::Error: there is no step without a metric.
  void step() override;
  void step(double metric) override;
  void begin() override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  bool is_better(double metric) const;
  void reduce();

  Options options_;
  double best_ = 0;
  int64_t bad_steps_ = 0;
  int64_t cooldown_left_ = 0;
};

}  // namespace levin::optim
