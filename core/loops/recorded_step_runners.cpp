#include <levin/core/loops/recorded_step_runners.h>

#include <levin/core/base/error.h>
#include <levin/core/loops/manual_recording.h>
#include <levin/core/loops/step_conditions.h>
#include <levin/core/loops/step_recording.h>

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace levin {
namespace {

/// Notices what hooks do with a loss that they cannot do with a replayed one, which has no graph.
class LossWatch {
 public:
  explicit LossWatch(const at::Tensor& loss)
      : loss_(loss), hooks_(gradient_hooks_of(loss)), former_(std::exchange(current_, this)) {
    // A replayed loss has no graph to run backward through.
    if (loss.grad_fn() != nullptr)
      callback_ =
          at::addThreadLocalCallback(at::RecordFunctionCallback(&on_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~LossWatch() {
    if (callback_) at::removeCallback(*callback_);
    current_ = former_;
  }
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;
  /// Returns what they did, with what to do instead; empty where it was nothing of that.
  std::string use() const {
    const char* const what = ran_backward_                        ? "runs backward through the loss"
                             : gradient_hooks_of(loss_) == hooks_ ? nullptr
                                                                  : "adds a hook to the loss";
    if (what == nullptr) return "";
    return fmt::format("on_before_backward {}, which a replayed step would leave out; hint: on_after_backward", what);
  }

 private:
  static std::unique_ptr<at::ObserverContext> on_node(const at::RecordFunction& node) {
    const auto& of_loss = current_->loss_.grad_fn();
    if (of_loss != nullptr && node.seqNr() == static_cast<int64_t>(of_loss->sequence_nr()))
      current_->ran_backward_ = true;
    return nullptr;
  }

  inline static thread_local LossWatch* current_ = nullptr;
  const at::Tensor& loss_;
  const size_t hooks_;
  LossWatch* const former_;
  bool ran_backward_ = false;
  std::optional<at::CallbackHandle> callback_;
};

/// Runs hooks that are given the loss of a replayed step.
void run_with_replayed_loss(const at::Tensor& loss, StepRunner::Run hooks) {
  const LossWatch watch(loss);
  hooks();
  if (const std::string use = watch.use(); !use.empty()) throw Error("graph", use + ", or graph: false");
}

/// Throws levin::Error where hooks have changed what the rest of a replayed step needs as it was recorded.
void require_unchanged(const char* changed) {
  if (changed == nullptr) return;
  throw Error("graph",
              fmt::format("{} changed in a hook inside of a replayed step, which goes on with the former; hint: "
                          "on_train_batch_start or on_train_batch_end, or graph: false",
                          changed));
}

ManualRecording& manual(StepRecording& recording) { return dynamic_cast<ManualRecording&>(recording); }

}  // namespace

// ---- Watched

StepOutput WatchedStep::step(c10::function_ref<StepOutput()> run) {
  StepOutput output;
  recording_->watch(RecordedPart::kStep, [&] { output = run(); });
  return output;
}

StepOutput WatchedStep::manual_step(c10::function_ref<StepOutput()> run, AtCut /*at_cut*/) { return step(run); }

at::Tensor WatchedStep::kept(const at::Tensor& loss) { return recording_->own(loss); }

void WatchedStep::step_end(StepOutput& output, Run run) {
  recording_->watch(RecordedPart::kStepEnd, [&] {
    run();
    recording_->take_over(output);
  });
}

void WatchedStep::before_backward(const at::Tensor& loss, Run hooks) {
  const LossWatch watch(loss);
  hooks();
  if (const std::string use = watch.use(); !use.empty()) recording_->refuse(use);
}

at::Tensor WatchedStep::divide(const at::Tensor& tensor, double /*divisor*/, const at::Tensor& stored) {
  return tensor / stored;
}

void WatchedStep::backward(Run run) { recording_->watch(RecordedPart::kBackward, run); }

StepScaling WatchedStep::unscale(c10::function_ref<StepScaling()> run) {
  StepScaling scaling;
  recording_->watch(RecordedPart::kUnscale, [&] { scaling = run(); });
  return scaling;
}

void WatchedStep::interrupt(const ManualCut& cut, const at::Tensor& loss, Run hooks) {
  is_manual_ ? manual(*recording_).interrupt(cut, loss, hooks) : hooks();
}

void WatchedStep::clip(Run run) { recording_->watch(RecordedPart::kClip, run); }
void WatchedStep::update(Run /*clip*/, Run run) { recording_->watch(RecordedPart::kUpdate, run); }
void WatchedStep::end_window(Run run) { recording_->watch(RecordedPart::kEndWindow, run); }

// ---- Replayed

StepOutput ReplayedStep::step(c10::function_ref<StepOutput()> /*run*/) { return recording_->forward(); }

StepOutput ReplayedStep::manual_step(c10::function_ref<StepOutput()> /*run*/, AtCut at_cut) {
  return manual(*recording_).replay([&](const ManualCut& cut, const at::Tensor& loss) {
    is_ordinary_ = true;
    if (cut.kind == ManualCut::Kind::kBeforeBackward)
      run_with_replayed_loss(loss, [&] { at_cut(cut, loss); });
    else
      at_cut(cut, loss);
    is_ordinary_ = false;
    require_unchanged(conditions_->changed_inside({.flags = false}));
  });
}

/// The recording of the step has it.
void ReplayedStep::step_end(StepOutput& /*output*/, Run /*run*/) {}

void ReplayedStep::zero_grad(Run run) {
  if (is_ordinary_) return run();
  for (const auto& parameter : optimizers_.front()->parameters()) parameter.mutable_grad().reset();
}

void ReplayedStep::before_backward(const at::Tensor& loss, Run hooks) {
  is_ordinary_ ? hooks() : run_with_replayed_loss(loss, hooks);
}

void ReplayedStep::backward(Run run) {
  if (is_ordinary_) return run();
  require_unchanged(conditions_->changed_inside({.optimizers = false}));
  recording_->backward();
}

StepScaling ReplayedStep::unscale(c10::function_ref<StepScaling()> run) {
  if (!is_ordinary_)
    if (const auto scaling = recording_->unscale()) return *scaling;
  is_ordinary_ = true;
  return run();
}

void ReplayedStep::clip(Run run) {
  if (is_ordinary_) run();  // the recorded update clips as well
}

void ReplayedStep::update(Run clip, Run run) {
  if (!is_ordinary_) {
    if (conditions_->changed_inside({}) == nullptr && recording_->update()) return;
    clip();
  }
  run();
}

void ReplayedStep::end_window(Run run) { is_ordinary_ ? run() : recording_->end_window(); }

}  // namespace levin
