#pragma once

#include <levin/core/base/step_scaling.h>
#include <levin/core/data/batch.h>
#include <levin/core/interfaces/step_output.h>
#include <levin/core/loops/recorded_parts.h>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

namespace levin {

/// Runs the parts of a training step, each given as it is written: an ordinary step runs them. Those of RecordedStep
/// watch them for a recording, or replay one in their place. Chosen once a batch.
class StepRunner {
 public:
  using Run = c10::function_ref<void()>;
  /// Runs the hooks where a training_step of manual optimization is cut; see ManualCut.
  using AtCut = c10::function_ref<void(const ManualCut& cut, const at::Tensor& loss)>;

  StepRunner() = default;
  virtual ~StepRunner() = default;
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  /// Makes what remains of the step an ordinary one.
  virtual void be_ordinary() {}
  /// Returns the batch to run on, a copy of `given` or itself.
  virtual const Batch& batch(const Batch& given) { return given; }

  virtual StepOutput step(c10::function_ref<StepOutput()> run) { return run(); }
  /// The same where the module optimizes manually. `at_cut`: for a step whose own code does not run.
  virtual StepOutput manual_step(c10::function_ref<StepOutput()> run, AtCut /*at_cut*/) { return run(); }
  /// Returns a loss of manual optimization to be kept until the next step.
  virtual at::Tensor kept(const at::Tensor& loss) { return loss; }
  /// `run` makes the output.
  virtual void step_end(StepOutput& /*output*/, Run run) { run(); }
  virtual void zero_grad(Run run) { run(); }
  /// `hooks`: on_before_backward with this loss.
  virtual void before_backward(const at::Tensor& /*loss*/, Run hooks) { hooks(); }
  /// Divides a tensor by a number that changes from step to step. `stored`: where it is written for recordings.
  virtual at::Tensor divide(const at::Tensor& tensor, double divisor, const at::Tensor& /*stored*/) {
    return tensor / divisor;
  }
  virtual void backward(Run run) { run(); }
  virtual StepScaling unscale(c10::function_ref<StepScaling()> run) { return run(); }
  /// `hooks`: those of a cut in manual optimization, or between the parts of an automatic step.
  virtual void interrupt(const ManualCut& /*cut*/, const at::Tensor& /*loss*/, Run hooks) { hooks(); }
  virtual void clip(Run run) { run(); }
  /// `clip`: what comes before the update where it was left out above.
  virtual void update(Run /*clip*/, Run run) { run(); }
  virtual void end_window(Run run) { run(); }
};

}  // namespace levin
