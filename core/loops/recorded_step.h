#pragma once

#include <levin/core/accelerators/graph_recorder.h>
#include <levin/core/base/step_scaling.h>
#include <levin/core/connectors/logger_connector.h>
#include <levin/core/connectors/optimizer_connector.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/interfaces/step_output.h>
#include <levin/core/loops/step_timer.h>
#include <levin/core/options/resolved_options.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin {

class StepConditions;
class StepRecording;

/// Training steps from recordings (`graph`). After some steps as ever, one is recorded, part by part: forward,
/// backward, unscaling, clipping and update, loss scale. From then on a step replays the parts, and hooks run between
/// them as ever. A replayed part does to the same memory what the recorded one did, without running its C++ code.
///
/// Each of a few shapes of batches has a recording of its own, as has each place in an accumulation window: the batch
/// that begins it, those that add to its gradients, the one that ends it. Others take ordinary steps. Where the
/// optimizer's parameters, state or options (other than the learning rate), the module's tree or mode or the thread's
/// settings have changed, the step is recorded anew.
///
/// On the CPU a step that is recorded is really taken meanwhile. Some later ones are ordinary too, and a replay is
/// compared with them and taken back; a difference ends recording. On other devices a step is recorded before it is
/// taken, and that cannot be compared.
class RecordedStep {
 public:
  /// Parts of a step, run while recording only.
  struct Parts {
    std::function<StepOutput(const Batch&)> forward;
    std::function<void(StepOutput&)> backward;
    std::function<void(StepScaling)> update;  ///< clipping and the optimizer's step
  };

  /// Makes one; where the steps of this run cannot be recorded, returns nothing, and a warning says why. Throws
  /// levin::Error instead where recording is required.
  static std::unique_ptr<RecordedStep> make(const ResolvedOptions& options, const TrainerState& state,
                                            LoggerConnector& logger, OptimizerConnector& optimizers, Parts parts);
  ~RecordedStep();

  /// What a step is in its accumulation window.
  struct Place {
    bool adds = false;  ///< to the gradients of former ones
    bool ends = true;   ///< the optimizer takes a step
    int64_t size = 1;   ///< batches in the window
    bool operator==(const Place&) const = default;
  };
  enum class Kind {
    kOrdinary,
    kWatched,   ///< ordinary, with `batch()`, and each part goes through `watch`
    kReplayed,  ///< by calls from `forward` to `end_window`, in this order
  };
  /// Parts as they are watched.
  enum class Part { kStep, kStepEnd, kBackward, kUnscale, kClip, kUpdate, kEndWindow };
  static constexpr size_t kParts = 7;
  /// Those of a step that does not end its window.
  static constexpr size_t kPartsBeforeUpdate = 3;

  Kind begin(const Batch& batch, const Place& place);
  /// Returns the batch of a watched step.
  const Batch& batch() const { return *watched_batch_; }
  /// Runs a part of a watched step.
  void watch(Part part, const std::function<void()>& body);
  StepOutput forward();
  void zero_grad();
  void backward();
  StepScaling unscale();
  void update();
  void end_window();
  /// Ends a step, of whatever kind. `scaling`: what unscaling gave in it.
  void end(const StepOutput& output, const StepScaling& scaling);

 private:
  struct Shape;

  RecordedStep(const ResolvedOptions& options, const TrainerState& state, LoggerConnector& logger,
               OptimizerConnector& optimizers, std::unique_ptr<GraphRecorder> recorder, Parts parts);
  /// Returns the shape of a step; nullptr when there are too many.
  Shape* shape_of(const Batch& batch, const Place& place);
  /// Leaves the step as it was, and gives up, where it cannot be recorded.
  void record(Shape& shape, const Batch& batch);
  std::unique_ptr<StepRecording> make_recording(const Place& place);
  /// Makes the recorded step ready for replays. Returns whether it is.
  bool finish(Shape& shape, const Batch& batch);
  Kind watch(StepRecording& recording, const Batch& batch);
  bool is_due(const StepRecording& recording) const;
  void say_recorded() const;
  void choose();
  void forget();
  void give_up(const std::string& reason);

  const ResolvedOptions& options_;
  const TrainerState& state_;
  Strategy& strategy_;
  Precision& precision_;
  metrics::Collector& metrics_;
  OptimizerHandle& optimizer_;
  std::unique_ptr<GraphRecorder> first_recorder_;
  const Parts parts_;
  size_t most_shapes_ = 1;
  int64_t most_recordings_;
  std::vector<std::unique_ptr<Shape>> shapes_;
  Kind kind_ = Kind::kOrdinary;       ///< of the step under way
  StepRecording* current_ = nullptr;  ///< what it replays or is watched by; nullptr: an ordinary step
  const Batch* watched_batch_ = nullptr;
  int64_t held_results_ = 0;
  int64_t recorded_batch_ = 0;
  double recording_seconds_ = 0;
  std::chrono::steady_clock::time_point watch_began_;
  int64_t recordings_ = 0;
  std::string last_change_;  ///< for which the step was recorded anew
  bool gave_up_ = false;
  bool times_ = false;                          ///< the step under way is one that the timer counts
  std::unique_ptr<StepConditions> conditions_;  ///< under which steps were recorded
  std::unique_ptr<StepTimer> timer_;            ///< while `auto` has not chosen yet
};

}  // namespace levin
