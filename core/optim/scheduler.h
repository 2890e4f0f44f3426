#pragma once

#include <levin/core/base/registry.h>
#include <levin/core/base/state.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace levin::optim {

/// Changes the learning rates of an optimizer's parameter groups from step to step. For the same settings the values
/// are those of torch.optim.lr_scheduler.
class Scheduler : public Configurable, public Stateful {
 public:
  /// Binds to an optimizer, which must outlive this, and sets the learning rates of step 0. Throws levin::Error when an
  /// option that depends on the length of the run is neither set nor known.
  void attach(torch::optim::Optimizer& optimizer);
  /// Binds where another scheduler of that optimizer may have changed its learning rates already: `initial_lrs` are
  /// those that configure_optimizers gave.
  void attach(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs);

  virtual void step() = 0;
  /// Steps a scheduler that follows a metric; throws levin::Error for all others.
  virtual void step(double metric);
  virtual bool needs_metric() const { return false; }

  /// Sets the steps of the whole run, -1 when that is unbounded: what unset lengths follow. Called before `attach`.
  virtual void set_estimated_total(int64_t steps) { estimated_total_ = steps; }

  /// The learning rates that the last step left, one a parameter group.
  const std::vector<double>& last_lr() const { return last_lr_; }

  /// Binds without setting any learning rate. Part of `attach`; called by schedulers made of others.
  virtual void bind(torch::optim::Optimizer& optimizer, const std::vector<double>& initial_lrs);
  /// Puts the schedule at step 0 and sets its learning rates. Part of `attach`, and how a sequence enters its next
  /// part.
  virtual void begin() = 0;

 protected:
  torch::optim::Optimizer& optimizer() const;
  size_t group_count() const;
  double group_lr(size_t group) const;
  void set_group_lr(size_t group, double lr);
  /// A group's learning rate before any schedule. Groups added since then start from what they have.
  double base_lr(size_t group) const { return base_lrs_[group]; }
  void adopt_new_groups();
  void reset_to_base_lrs();
  void record_lrs();

  /// Returns `option`, or else the length of the run; throws levin::Error naming `option_name` when both are unknown.
  int64_t resolved_length(const std::optional<int64_t>& option, const char* option_name) const;
  [[noreturn]] void fail(const std::string& message) const;

  State learning_rates_state() const;
  void load_learning_rates(const State& state);

 private:
  torch::optim::Optimizer* optimizer_ = nullptr;
  int64_t estimated_total_ = -1;
  std::vector<double> base_lrs_;
  std::vector<double> last_lr_;
};

/// A schedule that knows each group's next learning rate from the number of steps and the present learning rate.
class StepwiseScheduler : public Scheduler {
 public:
  using Scheduler::step;
  void step() override;
  void begin() override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;

 protected:
  /// Steps taken since `begin`.
  int64_t steps_taken() const { return steps_taken_; }
  /// The learning rate of step 0; `current` is the base learning rate, or what other schedulers of a chain made of it.
  virtual double first_lr(size_t /*group*/, double current) const { return current; }
  /// The learning rate after `steps_taken()` steps, at least one; `current` is the group's present one.
  virtual double next_lr(size_t group, double current) const = 0;
  /// Called after the count has changed, before the learning rates do.
  virtual void on_count_changed() {}
  /// Called after the learning rates were set.
  virtual void on_lrs_set() {}

 private:
  int64_t steps_taken_ = 0;
};

}  // namespace levin::optim
