#pragma once

#include <levin/core/base/step_scaling.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace levin {

namespace optim {
class FusedOptimizer;
class Scheduler;
}  // namespace optim

/// Levin's handle over any LibTorch optimizer. In manual optimization `step()` runs the hooks around the step, as the
/// automatic one does.
class OptimizerHandle {
 public:
  /// Runs forward and backward of one window and returns the loss (undefined when the batch was skipped).
  using Closure = std::function<at::Tensor()>;
  /// What the trainer does around a step: unscaling, hooks, clipping, counting. It calls `take_step` for the step
  /// itself.
  using Driver = std::function<void(OptimizerHandle&, const Closure&)>;

  OptimizerHandle(std::shared_ptr<torch::optim::Optimizer> optimizer, int64_t index, Driver driver);

  int64_t index() const { return index_; }
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  const std::shared_ptr<torch::optim::Optimizer>& shared_optimizer() const { return optimizer_; }
  /// Parameters of all groups, in order.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Its schedulers, in the order of configure_optimizers.
  const std::vector<optim::Scheduler*>& schedulers() const { return schedulers_; }
  void add_scheduler(optim::Scheduler& scheduler) { schedulers_.push_back(&scheduler); }
  /// The learning rate of a group.
  double learning_rate(size_t group = 0) const;

  /// Gradients of its parameters become undefined.
  void zero_grad();
  /// Steps with the hooks and the clipping of the trainer around it. With a closure (automatic optimization) the
  /// closure runs first; without one the gradients are those there are.
  void step(const Closure& closure = {});
  /// The bare step of the optimizer, as the trainer's driver takes it. `closure` is passed on to an optimizer that
  /// evaluates the model itself (LBFGS).
  void take_step(const StepScaling& scaling, const std::function<at::Tensor()>& closure = {});
  /// Whether the optimizer evaluates the model itself (LBFGS).
  bool needs_closure() const { return needs_closure_; }

  /// Parameters of this optimizer, and no other, require gradients until untoggle.
  void toggle(const std::vector<OptimizerHandle*>& all);
  void untoggle();
  bool is_toggled() const { return toggled_; }

  /// Manual optimization: whether gradients wait for a step, which a checkpoint must then hold too.
  bool awaits_step() const { return awaits_step_; }
  void note_backward() { awaits_step_ = true; }

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  optim::FusedOptimizer* fused_ = nullptr;
  int64_t index_;
  bool needs_closure_ = false;
  Driver driver_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> toggled_off_;
  std::vector<optim::Scheduler*> schedulers_;
  bool toggled_ = false;
  bool awaits_step_ = false;
};

}  // namespace levin
