#pragma once

#include <levin/core/trainer/hooks.h>

#include <cstdint>
#include <functional>

namespace levin {

/// One training batch: forward, backward and, at the end of an accumulation window, the optimizer step.
class Optimization final : private StepPhases {
 public:
  Optimization(RankCore& core, Hooks& hooks);

  /// Makes optimizers and schedulers from the module's configure_optimizers.
  void configure();

  /// Runs the step. `is_last`: no batch follows in this epoch; `remaining`: batches that follow, nothing when unknown.
  const StepOutput& run(const Batch& batch, int64_t batch_idx, bool is_last, std::optional<int64_t> remaining);

  /// Steps the schedulers of an interval: `plateau` those that follow a metric, or the others.
  void step_schedulers(Interval interval, bool plateau);

 private:
  StepOutput forward(const Batch& batch) override;
  void before_backward(StepOutput& output) override;
  void backward(StepOutput& output) override;
  void after_backward() override;

  at::Tensor run_closure();
  void drive_step(OptimizerHandle& optimizer, const OptimizerHandle::Closure& closure);
  void prepare_step(OptimizerHandle& optimizer, StepScaling& scaling);
  void scale_partial_window();

  RankCore& core_;
  Hooks& hooks_;
  OptimizerHandle::Closure closure_;
  StepOutput output_;
  const Batch* batch_ = nullptr;
  int64_t batch_idx_ = 0;
  StepWindow window_;
  bool closure_ran_ = false;
};

}  // namespace levin
