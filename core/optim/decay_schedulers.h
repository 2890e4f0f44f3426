#pragma once

#include <levin/core/optim/scheduler.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

/// Schedules whose learning rate follows from the number of steps alone.
namespace levin::optim {

/// Options of StepScheduler, explained in describe().
struct StepOptions {
  int64_t step_size = 30;
  double gamma = 0.1;
  static void describe(Schema<StepOptions>& schema);
};

/// Multiplies by `gamma` every `step_size` steps.
class StepScheduler final : public StepwiseScheduler {
 public:
  using Options = StepOptions;
  explicit StepScheduler(const Options& options);

 protected:
  double next_lr(size_t group, double current) const override;

 private:
  Options options_;
};

/// Options of MultiStepScheduler, explained in describe().
struct MultiStepOptions {
  std::vector<int64_t> milestones = {};
  double gamma = 0.1;
  static void describe(Schema<MultiStepOptions>& schema);
};

/// Multiplies by `gamma` at each milestone, as often as it is listed.
class MultiStepScheduler final : public StepwiseScheduler {
 public:
  using Options = MultiStepOptions;
  explicit MultiStepScheduler(const Options& options);

 protected:
  double next_lr(size_t group, double current) const override;

 private:
  Options options_;
};

/// Options of ExponentialScheduler, explained in describe().
struct ExponentialOptions {
  double gamma = 0.95;
  static void describe(Schema<ExponentialOptions>& schema);
};

/// Multiplies by `gamma` at every step.
class ExponentialScheduler final : public StepwiseScheduler {
 public:
  using Options = ExponentialOptions;
  explicit ExponentialScheduler(const Options& options);

 protected:
  double next_lr(size_t group, double current) const override;

 private:
  Options options_;
};

/// Options of LinearWarmupScheduler, explained in describe().
struct LinearWarmupOptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  int64_t total_iters = 5;
  static void describe(Schema<LinearWarmupOptions>& schema);
};

/// Goes from `start_factor` to `end_factor` times the learning rate in `total_iters` steps; constant after them.
class LinearWarmupScheduler final : public StepwiseScheduler {
 public:
  using Options = LinearWarmupOptions;
  explicit LinearWarmupScheduler(const Options& options);

 protected:
  double first_lr(size_t group, double current) const override;
  double next_lr(size_t group, double current) const override;

 private:
  Options options_;
};

/// Options of CosineScheduler, explained in describe().
struct CosineOptions {
  std::optional<int64_t> t_max = {};
  double eta_min = 0;
  static void describe(Schema<CosineOptions>& schema);
};

/// Half a cosine from the learning rate to `eta_min` (Loshchilov and Hutter, 2017, arXiv:1608.03983, without restarts).
/// Past `t_max` it rises again.
class CosineScheduler final : public StepwiseScheduler {
 public:
  using Options = CosineOptions;
  explicit CosineScheduler(const Options& options);
  void bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) override;

 protected:
  double next_lr(size_t group, double current) const override;

 private:
  Options options_;
  int64_t t_max_ = 1;
};

/// Options of CosineWarmRestartsScheduler, explained in describe().
struct CosineWarmRestartsOptions {
  int64_t t_0 = 10;
  int64_t t_mult = 1;  ///< each period is this many times as long as the one before
  double eta_min = 0;
  static void describe(Schema<CosineWarmRestartsOptions>& schema);
};

/// Half a cosine again and again (Loshchilov and Hutter, 2017, arXiv:1608.03983).
class CosineWarmRestartsScheduler final : public StepwiseScheduler {
 public:
  using Options = CosineWarmRestartsOptions;
  explicit CosineWarmRestartsScheduler(const Options& options);
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 protected:
  void on_count_changed() override;
  double first_lr(size_t group, double current) const override;
  double next_lr(size_t group, double current) const override;

 private:
  Options options_;
  int64_t period_ = 1;
  int64_t in_period_ = 0;  ///< steps since the last restart
};

/// A factor of the base learning rate from a function of the number of steps; in code only.
class LambdaScheduler final : public StepwiseScheduler {
 public:
  using Function = std::function<double(int64_t steps)>;

  explicit LambdaScheduler(Function factor) : factors_{std::move(factor)} {}
  /// One function for each parameter group.
  explicit LambdaScheduler(std::vector<Function> factors) : factors_(std::move(factors)) {}
  void bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) override;

 protected:
  double first_lr(size_t group, double current) const override { return next_lr(group, current); }
  double next_lr(size_t group, double current) const override;

 private:
  std::vector<Function> factors_;
};

}  // namespace levin::optim
