#pragma once

#include <levin/core/base/step_scaling.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
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
  /// The trainer's work around a step: unscaling, hooks, clipping, counting. It calls `take_step` for the step itself.
  using Driver = std::function<void(OptimizerHandle&, const Closure&)>;

  /// Gives what the optimizer steps in place of a parameter of the module: with a sharded one, this rank's part of it.
  using LocalShard = std::function<at::Tensor(const at::Tensor&)>;

  /// Puts shards in the places of the parameters in the optimizer's groups.
  OptimizerHandle(std::shared_ptr<torch::optim::Optimizer> optimizer, int64_t index, Driver driver,
                  LocalShard local_shard = {});

  int64_t index() const { return index_; }
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  const std::shared_ptr<torch::optim::Optimizer>& shared_optimizer() const { return optimizer_; }
  /// Tensors that it steps, of all groups, in order: these have the gradients before a step. The module's parameters,
  /// or this rank's shards of them.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Its schedulers, in the order of configure_optimizers.
  const std::vector<optim::Scheduler*>& schedulers() const { return schedulers_; }
  void add_scheduler(optim::Scheduler& scheduler) { schedulers_.push_back(&scheduler); }
  void clear_schedulers() { schedulers_.clear(); }
  /// The learning rate of a group.
  double learning_rate(size_t group = 0) const;

  /// Gives parameters of the module a group of their own, the last one, with the options of the first group and a
  /// learning rate: they leave the groups they are in, or are new to the optimizer. Their state stays. Returns the
  /// group's index. Every rank must do so between two windows.
  size_t move_to_new_group(const std::vector<at::Tensor>& module_parameters, double learning_rate);

  /// Makes the gradients of its parameters undefined, so that the next backward writes instead of adding; or zero.
  void zero_grad(bool set_to_none = true);
  /// Steps with the hooks and the clipping of the trainer around it. With a closure (automatic optimization) the
  /// closure runs first; without one the gradients are those there are.
  void step(const Closure& closure = {});
  /// The bare step of the optimizer, as the trainer's driver takes it. `closure` is passed on to an optimizer that
  /// evaluates the model itself (LBFGS, SAM).
  void take_step(StepScaling scaling, const std::function<at::Tensor()>& closure = {});
  /// Whether the optimizer evaluates the model itself (LBFGS, SAM).
  bool needs_closure() const { return needs_closure_; }

  /// Whether `divide_in_step` serves this optimizer.
  bool divides_in_step() const { return fused_ != nullptr && single_precision_; }
  /// Makes the next step divide the gradients by this tensor (float32, one element), in the pass that it makes anyway.
  void divide_in_step(at::Tensor divisor) { divisor_ = std::move(divisor); }

  /// Makes the parameters of this optimizer, and no other, require gradients until untoggle.
  void toggle(const std::vector<OptimizerHandle*>& all);
  void untoggle();
  bool is_toggled() const { return toggled_; }

  /// Whether gradients wait for a step in manual optimization; a checkpoint must then hold them too.
  bool awaits_step() const { return awaits_step_; }
  void note_backward() { awaits_step_ = true; }

  /// What toggling, backward and steps leave here, for a step that is done again without them (`graph`).
  struct Flags {
    bool toggled = false;
    bool awaits_step = false;
    bool operator==(const Flags&) const = default;
  };
  Flags flags() const { return {.toggled = toggled_, .awaits_step = awaits_step_}; }
  void set_flags(const Flags& flags) {
    toggled_ = flags.toggled;
    awaits_step_ = flags.awaits_step;
  }

 private:
  void take_places(std::vector<at::Tensor>& parameters);
  void collect_parameters();

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  optim::FusedOptimizer* fused_ = nullptr;
  int64_t index_;
  bool needs_closure_ = false;
  bool single_precision_ = true;  ///< all parameters are float32
  at::Tensor divisor_;
  Driver driver_;
  LocalShard local_shard_;
  std::vector<at::Tensor> module_parameters_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> toggled_off_;
  std::vector<optim::Scheduler*> schedulers_;
  bool toggled_ = false;
  bool awaits_step_ = false;
};

}  // namespace levin
