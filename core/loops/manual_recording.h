#pragma once

#include <levin/core/interfaces/optimizer_handle.h>
#include <levin/core/loops/step_recording.h>

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace levin {

/// The recorded step of manual optimization: training_step from its beginning to its end, with its backward passes and
/// updates, and training_step_end after it. Where hooks run a part ends; there a replay puts what they may look at as
/// it was in the recorded step.
class ManualRecording final : public StepRecording {
 public:
  using StepRecording::StepRecording;

  /// Parts that are not training_step as a whole, training_step_end or the window's end belong to the first of these.
  void watch(RecordedPart part, const std::function<void()>& body) override;
  /// Runs hooks inside of training_step. `loss`: what they are given before a backward.
  void interrupt(const ManualCut& cut, const at::Tensor& loss, const std::function<void()>& hooks);
  std::string finish() override;

  /// Replays the step up to its window's end; `at_cut` runs the hooks of each cut.
  StepOutput replay(const std::function<void(const ManualCut& cut, const at::Tensor& loss)>& at_cut);

 private:
  /// What a parameter shows to hooks.
  struct Shown {
    static constexpr std::ptrdiff_t kNoGradient = -1;
    static constexpr std::ptrdiff_t kFirstGradient = -2;  ///< that of when the step began
    std::ptrdiff_t gradient = kNoGradient;                ///< or its number among those of the results
    bool requires_grad = false;
    bool operator==(const Shown&) const = default;
  };
  /// What hooks may look at at the end of a part of training_step.
  struct View {
    std::vector<Shown> parameters;
    std::vector<OptimizerHandle::Flags> optimizers;
    bool operator==(const View&) const = default;
  };
  struct Stop {
    ManualCut cut;
    View view;
    size_t loss = 0;  ///< its number among those of the results; of kBeforeBackward
  };
  /// A loss or gradient that hooks of the first step were shown, and how many references they took to it.
  struct ShownTensor {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    int64_t taken = 0;
  };
  /// The parts of training_step, and the view at the end of the last one.
  struct Script {
    std::vector<Stop> stops;
    View end;
  };
  /// A gradient and its parameter, as numbers.
  struct Written {
    size_t gradient;
    size_t parameter;
  };

  void begin_results() override;
  void end_parts() override;
  std::string what_is_missing(const StepOutput& output) const override;
  View view();
  /// Runs hooks on the gradients of a view; notes why the step could not be replayed with them.
  void run_hooks(const View& view, const std::function<void()>& hooks);
  /// Shows a loss or gradient to hooks of the first step.
  void show(const at::Tensor& tensor);
  /// Returns the references to a tensor beside that of the parameter whose gradient it is; 0 when it is gone.
  int64_t references_to(const ShownTensor& shown) const;
  /// Notes a learning rate that changed since the last call and not in a hook.
  void check_learning_rates();
  std::vector<double> learning_rates() const;
  /// Replays a part of training_step.
  void replay_until(size_t part, const View& view);
  /// Makes everything but gradients show what it does in a view.
  void show_flags(const View& view);
  /// Gives gradients that a part writes other memory where somebody holds them.
  void renew_before(size_t part, const View& view);

  bool is_inside_ = false;  ///< of training_step, while it is watched
  bool in_hooks_ = false;   ///< called inside of it
  Script script_;
  Script watched_script_;
  std::vector<ShownTensor> shown_;
  std::vector<double> learning_rates_;                   ///< before the part under way
  std::vector<std::vector<Written>> gradients_of_part_;  ///< those that each part writes first
};

}  // namespace levin
