#pragma once

#include <levin/core/optim/scheduler.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Schedules of a given length or none, as language models and long fine-tuning use them. A warm-up before them is
/// SchedulerConfig::warmup_steps.
namespace levin::optim {

/// Options of PolynomialScheduler, with torch.optim.lr_scheduler.PolynomialLR's names.
struct PolynomialOptions {
  std::optional<int64_t> total_iters = {};
  double power = 1;
  static void describe(Schema<PolynomialOptions>& schema);
};

/// Falls to 0 as a power of the steps that are left; `power` 1 is a straight line.
class PolynomialScheduler final : public StepwiseScheduler {
 public:
  using Options = PolynomialOptions;
  explicit PolynomialScheduler(const Options& options);
  void bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) override;

 protected:
  double next_lr(size_t group, double current) const override;

 private:
  Options options_;
  int64_t total_iters_ = 1;
};

/// Options of ConstantScheduler, with the names and defaults of torch.optim.lr_scheduler.ConstantLR.
struct ConstantOptions {
  double factor = 1.0 / 3;
  int64_t total_iters = 5;
  static void describe(Schema<ConstantOptions>& schema);
};

/// A part of the learning rate for the first steps, then all of it.
class ConstantScheduler final : public StepwiseScheduler {
 public:
  using Options = ConstantOptions;
  explicit ConstantScheduler(const Options& options);

 protected:
  double first_lr(size_t group, double current) const override;
  double next_lr(size_t group, double current) const override;

 private:
  Options options_;
};

/// Options of InverseSquareRootScheduler, explained in describe().
struct InverseSquareRootOptions {
  int64_t timescale = 10'000;
  static void describe(Schema<InverseSquareRootOptions>& schema);
};

/// sqrt(timescale / (timescale + steps)) of the learning rate, without end (Vaswani et al., 2017, arXiv:1706.03762, as
/// Hugging Face's get_inverse_sqrt_schedule has it).
class InverseSquareRootScheduler final : public StepwiseScheduler {
 public:
  using Options = InverseSquareRootOptions;
  explicit InverseSquareRootScheduler(const Options& options);

 protected:
  double next_lr(size_t group, double current) const override;

 private:
  Options options_;
};

/// Options of StableDecayScheduler, explained in describe().
struct StableDecayOptions {
  std::optional<int64_t> total_steps = {};
  double decay_ratio = 0.1;
  std::string decay_type = "linear";
  double min_lr_factor = 0;
  static void describe(Schema<StableDecayOptions>& schema);
};

/// The learning rate itself until the last part of the run, in which it falls (Hu et al., 2024, arXiv:2404.06395).
class StableDecayScheduler final : public StepwiseScheduler {
 public:
  using Options = StableDecayOptions;
  explicit StableDecayScheduler(const Options& options);
  void bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) override;

 protected:
  double next_lr(size_t group, double current) const override;

 private:
  Options options_;
  int64_t decay_start_ = 0;  ///< steps before the fall
  int64_t total_steps_ = 1;
};

/// Options of CyclicScheduler, with the names and defaults of torch.optim.lr_scheduler.CyclicLR.
struct CyclicOptions {
  double base_lr = 1e-4;
  std::optional<double> max_lr = {};
  int64_t step_size_up = 2000;
  std::optional<int64_t> step_size_down = {};
  std::string mode = "triangular";
  double gamma = 1;
  bool cycle_momentum = true;  ///< momentum (or the first beta) falls while the learning rate rises
  double base_momentum = 0.8;
  double max_momentum = 0.9;
  static void describe(Schema<CyclicOptions>& schema);
};

/// Rises and falls between two learning rates again and again (Smith, 2017, arXiv:1506.01186).
class CyclicScheduler final : public StepwiseScheduler {
 public:
  using Options = CyclicOptions;
  explicit CyclicScheduler(const Options& options);
  State state_dict() const override;

 protected:
  double first_lr(size_t group, double current) const override { return next_lr(group, current); }
  double next_lr(size_t group, double current) const override;
  void on_lrs_set() override;

 private:
  /// The place between the lower and the upper bound, from 0 to 1.
  double height() const;

  Options options_;
};

}  // namespace levin::optim
