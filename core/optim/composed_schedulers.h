#pragma once

#include <levin/core/optim/scheduler.h>

#include <cstdint>
#include <memory>
#include <vector>

/// Schedules made of others.
namespace levin::optim {

/// Options of ChainedScheduler, explained in describe().
struct ChainedOptions {
  /// Each a name, `{name: cosine, t_max: 10}` or `cosine: {t_max: 10}`.
  std::vector<Config> schedulers = {};
  static void describe(Schema<ChainedOptions>& schema);
};

/// Options of SequentialScheduler, explained in describe().
struct SequentialOptions {
  /// Each a name, `{name: cosine, t_max: 10}` or `cosine: {t_max: 10}`.
  std::vector<Config> schedulers = {};
  std::vector<int64_t> milestones = {};  ///< the step at which each scheduler but the first takes over
  static void describe(Schema<SequentialOptions>& schema);
};

/// Base of both: parts that share an optimizer and its initial learning rates.
class ComposedScheduler : public Scheduler {
 public:
  using Scheduler::step;
  void bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs) override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 protected:
  /// Throws levin::Error when there is no part, or one that needs a metric.
  explicit ComposedScheduler(std::vector<std::shared_ptr<Scheduler>> parts);
  const std::vector<std::shared_ptr<Scheduler>>& parts() const { return parts_; }

 private:
  std::vector<std::shared_ptr<Scheduler>> parts_;
};

/// All schedulers step together, each changing what the one before left (torch.optim.lr_scheduler.ChainedScheduler).
class ChainedScheduler final : public ComposedScheduler {
 public:
  using Options = ChainedOptions;
  explicit ChainedScheduler(const Options& options);
  explicit ChainedScheduler(std::vector<std::shared_ptr<Scheduler>> parts);

  void set_estimated_total(int64_t steps) override;
  using ComposedScheduler::step;
  void step() override;
  void begin() override;
};

/// One scheduler after the other, each from the initial learning rates (torch.optim.lr_scheduler.SequentialLR).
class SequentialScheduler final : public ComposedScheduler {
 public:
  using Options = SequentialOptions;
  explicit SequentialScheduler(const Options& options);
  SequentialScheduler(std::vector<std::shared_ptr<Scheduler>> parts, std::vector<int64_t> milestones);

  /// Each part gets the steps between its milestones.
  void set_estimated_total(int64_t steps) override;
  using ComposedScheduler::step;
  void step() override;
  void begin() override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 private:
  std::vector<int64_t> milestones_;
  int64_t steps_taken_ = 0;
};

}  // namespace levin::optim
