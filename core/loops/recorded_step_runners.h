#pragma once

#include <levin/core/interfaces/optimizer_handle.h>
#include <levin/core/loops/step_runner.h>

#include <vector>

namespace levin {

class StepConditions;
class StepRecording;

/// The parts of a step that is taken while it is recorded, or compared with its recording.
class WatchedStep final : public StepRunner {
 public:
  explicit WatchedStep(bool is_manual) : is_manual_(is_manual) {}

  /// Called before each step. `batch`: what it runs on.
  void begin(StepRecording& recording, const Batch& batch) {
    recording_ = &recording;
    batch_ = &batch;
  }
  const Batch& batch(const Batch& /*given*/) override { return *batch_; }
  StepOutput step(c10::function_ref<StepOutput()> run) override;
  StepOutput manual_step(c10::function_ref<StepOutput()> run, AtCut at_cut) override;
  at::Tensor kept(const at::Tensor& loss) override;
  void step_end(StepOutput& output, Run run) override;
  void before_backward(const at::Tensor& loss, Run hooks) override;
  at::Tensor divide(const at::Tensor& tensor, double divisor, const at::Tensor& stored) override;
  void backward(Run run) override;
  StepScaling unscale(c10::function_ref<StepScaling()> run) override;
  void interrupt(const ManualCut& cut, const at::Tensor& loss, Run hooks) override;
  void clip(Run run) override;
  void update(Run clip, Run run) override;
  void end_window(Run run) override;

 private:
  const bool is_manual_;
  StepRecording* recording_ = nullptr;
  const Batch* batch_ = nullptr;
};

/// The parts of a step that is replayed. Hooks run between its parts; where one has cleared a gradient, or changed what
/// the update was recorded with, the rest of the step is ordinary.
class ReplayedStep final : public StepRunner {
 public:
  explicit ReplayedStep(const std::vector<OptimizerHandle*>& optimizers) : optimizers_(optimizers) {}

  /// Called before each step.
  void begin(StepRecording& recording, const StepConditions& conditions) {
    recording_ = &recording;
    conditions_ = &conditions;
    is_ordinary_ = false;
  }
  void be_ordinary() override { is_ordinary_ = true; }
  StepOutput step(c10::function_ref<StepOutput()> run) override;
  StepOutput manual_step(c10::function_ref<StepOutput()> run, AtCut at_cut) override;
  void step_end(StepOutput& output, Run run) override;
  void zero_grad(Run run) override;
  void before_backward(const at::Tensor& loss, Run hooks) override;
  void backward(Run run) override;
  StepScaling unscale(c10::function_ref<StepScaling()> run) override;
  void clip(Run run) override;
  void update(Run clip, Run run) override;
  void end_window(Run run) override;

 private:
  const std::vector<OptimizerHandle*>& optimizers_;
  StepRecording* recording_ = nullptr;
  const StepConditions* conditions_ = nullptr;
  bool is_ordinary_ = false;  ///< from here on, or in hooks that run backward and take steps of their own
};

}  // namespace levin
