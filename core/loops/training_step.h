#pragma once

#include <levin/core/connectors/callback_connector.h>
#include <levin/core/connectors/logger_connector.h>
#include <levin/core/connectors/optimizer_connector.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/loops/recorded_step.h>
#include <levin/core/loops/step_runner.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace levin {

/// Place of a training batch among the others, on this rank and on all.
struct BatchInfo {
  int64_t batch_idx = 0;
  bool is_last = false;                   ///< no batch follows in this epoch, on any rank
  std::optional<int64_t> remaining = {};  ///< batches that follow; nothing when unknown
  double weight = 1;  ///< of this rank's part of the batch, relative to the ranks' mean; 0 where it has no data
  bool weight_is_known = true;     ///< false: in manual optimization the ranks tell each other what they have
  int64_t examples = 0;            ///< in this rank's part
  int64_t usual_examples = 1;      ///< in a part of full size, the same on all ranks
  int64_t examples_of_window = 0;  ///< of all ranks, in the window that the batch begins; 0: not known
  bool uneven_inputs = false;      ///< see AccumulationWindow
  bool has_next = true;            ///< see AccumulationWindow
  bool has_data = true;            ///< false: this rank joins the others' step; see JoinScope
  int64_t samples = 0;             ///< examples in the batch, of all ranks
};

/// Trains on one batch: forward, backward and, at the end of an accumulation window, the optimizer step.
class TrainingStep final : private StepPhases {
 public:
  TrainingStep(const ResolvedOptions& options, TrainerState& state, Tracer& tracer, CallbackConnector& callbacks,
               LoggerConnector& logger, OptimizerConnector& optimizers);

  /// Takes the place of the module's training_step; may run for a replica of the module, on any thread.
  using Body = std::function<StepOutput(Module& module, const Batch& batch)>;

  const StepOutput& run(const Batch& batch, const BatchInfo& info);
  /// Makes batches run this from here on; empty: training_step. Such steps are not recorded.
  void set_body(Body body) { body_ = std::move(body); }
  /// Output of the last batch.
  const StepOutput& output() const { return output_; }
  /// Loss of the last batch, or the last one that a manual step gave to backward; undefined where there is none.
  const at::Tensor& loss() const { return output_.has_loss() ? output_.loss() : manual_loss_; }
  /// Whether the window just reduced has shown that no rank has data for another batch.
  bool data_ended() const { return data_ended_; }
  /// Whether schedulers follow the batch just run: it took a step, and none that was skipped in half precision is still
  /// to be made up for. To be asked once a batch.
  bool schedulers_are_due();

  /// Takes an optimizer's step with all that belongs to it; see OptimizerHandle::Driver.
  void drive_optimizer(OptimizerHandle& optimizer, const OptimizerHandle::Closure& closure);
  /// Runs backward in manual optimization; see Module.
  void manual_backward(const at::Tensor& loss, const BackwardOptions& options);
  /// Combines the gradients that manual_backward has left on the ranks so far: they outlast their epoch. Collective.
  void combine_kept_gradients();

  /// Runs forward and backward of a batch, or a whole step of manual optimization.
  using ForwardBackward = std::function<StepOutput()>;
  /// Puts `guard` around each of them: a dry run that may run out of memory. nullptr takes it away.
  void set_guard(std::function<StepOutput(const ForwardBackward&)> guard) { guard_ = std::move(guard); }

  /// Records steps and replays them from here on, where the options ask for it. Called on the thread that trains.
  void start_recording();
  void end_recording() { recorded_.reset(); }
  /// Has rank 0 say why steps of other ranks alone are not recorded. Collective where steps may be recorded.
  void tell_refusal();

 private:
  Module& module() override { return *state_.module; }
  StepOutput step(Module& module, const Batch& batch) override;
  StepOutput step_end(StepOutput output) override;
  void before_backward(StepOutput& output) override;
  void weigh(const StepOutput& output, double share) override;
  const LossWeight& window_weight() const override { return state_.progress.window_weight; }
  void backward(StepOutput& output) override;
  void after_backward() override;
  std::shared_ptr<void> forward_scope() override;

  /// Makes the step under way one that may be recorded or replayed.
  void begin_recorded(const WindowPlace& place);
  at::Tensor run_closure();
  StepOutput guarded(const ForwardBackward& run) { return guard_ ? guard_(run) : run(); }
  void run_manually();
  StepOutput run_manual_step(c10::function_ref<StepOutput()> run);
  void finish_backward(const ManualCut& cut);
  void run_hooks_of(const ManualCut& cut, const at::Tensor& loss);
  void prepare_step(OptimizerHandle& optimizer, StepScaling& scaling);
  void clip_gradients(OptimizerHandle& optimizer);
  void end_window();
  void drop_gradients_without_step();
  bool reduce_weights();
  at::Tensor mean_over_ranks(const at::Tensor& loss);
  void begin_window();
  void check_weight(StepOutput& output);
  double default_weight() const;
  at::Tensor weighed(const at::Tensor& loss);
  bool average_over_window();

  const ResolvedOptions& options_;
  TrainerState& state_;
  Tracer& tracer_;
  Strategy& strategy_;
  DividedModel& model_;
  Precision& precision_;
  CallbackConnector& callbacks_;
  LoggerConnector& logger_;
  OptimizerConnector& optimizers_;
  const OptimizerHandle::Closure closure_;
  std::function<StepOutput(const ForwardBackward&)> guard_;
  StepRunner ordinary_;
  RecordingRefusal refusal_;
  std::unique_ptr<RecordedStep> recorded_;
  Body body_;

  // ---- The window under way.
  bool is_divided_ = false;     ///< its losses are not one loss of one rank
  bool gives_weights_ = false;  ///< training_step has given one
  double divisor_ = 1;          ///< of the losses' weights, until the optimizer's step divides by their sum
  // What recorded steps read: numbers, as far as types are concerned.
  at::Tensor recorded_divisor_;
  at::Tensor recorded_quotient_;  ///< of the divisor and the batch's examples

  // ---- The batch under way.
  LossWeight weight_;        ///< of the loss weighed last
  bool is_weighed_ = false;  ///< before its backward
  const Batch* batch_ = nullptr;
  BatchInfo info_;
  AccumulationWindow window_;
  StepOutput output_;
  at::Tensor manual_loss_;
  bool stepped_ = false;      ///< it took an optimizer step
  bool scale_waits_ = false;  ///< for gradients that the strategy keeps back, after a step
  bool data_ended_ = false;
  bool closure_ran_ = false;
  bool in_backward_ = false;  ///< the closure has got as far
  StepRunner* runner_ = &ordinary_;
  StepScaling scaling_;  ///< what unscaling gave
};

}  // namespace levin
