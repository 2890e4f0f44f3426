#pragma once

#include <levin/core/accelerators/graph_recorder.h>
#include <levin/core/base/step_scaling.h>
#include <levin/core/connectors/logger_connector.h>
#include <levin/core/connectors/optimizer_connector.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/interfaces/step_output.h>
#include <levin/core/loops/recorded_parts.h>
#include <levin/core/loops/recorded_step_runners.h>
#include <levin/core/loops/recording_refusal.h>
#include <levin/core/loops/step_timer.h>
#include <levin/core/options/resolved_options.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
/// On the CPU a step that is recorded is really taken meanwhile. Some later ones are ordinary too, at intervals that
/// grow and after the program has written to the module between steps, and a replay is compared with them and taken
/// back; a difference ends recording. On other devices a step is recorded before it is
/// taken, and that cannot be compared.
///
/// In manual optimization, on the CPU, training_step is recorded as a whole, with its backward passes and updates, and
/// is cut where hooks run.
class RecordedStep {
 public:
  /// Makes one; where the steps of this run cannot be recorded, returns nothing, and `refusal` is told why. Throws
  /// levin::Error instead where recording is required. `refusal` must live as long.
  static std::unique_ptr<RecordedStep> make(const ResolvedOptions& options, const TrainerState& state,
                                            LoggerConnector& logger, OptimizerConnector& optimizers,
                                            RecordedBodies bodies, RecordingRefusal& refusal);
  ~RecordedStep();

  /// Decides what a step is. Returns what runs its parts; nullptr: it is an ordinary one.
  StepRunner* begin(const Batch& batch, const WindowPlace& place);
  /// Ends a step, of whatever kind. `scaling`: what unscaling gave in it.
  void end(const StepOutput& output, const StepScaling& scaling);
  /// Called when all hooks of the step have run, and before its output is given up.
  void end_hooks();
  /// Takes ordinary steps from here on. Throws levin::Error where recording is required.
  void give_up(const std::string& reason);

 private:
  struct Shape;
  enum class Kind { kOrdinary, kWatched, kReplayed };

  RecordedStep(const ResolvedOptions& options, const TrainerState& state, LoggerConnector& logger,
               OptimizerConnector& optimizers, std::unique_ptr<GraphRecorder> recorder, RecordedBodies bodies,
               RecordingRefusal& refusal);
  Kind decide(const Batch& batch, const WindowPlace& place);
  /// Returns the shape of a step; nullptr when there are too many.
  Shape* shape_of(const Batch& batch, const WindowPlace& place);
  /// Leaves the step as it was, and gives up, where it cannot be recorded.
  void record(Shape& shape, const Batch& batch);
  std::unique_ptr<StepRecording> make_recording(const WindowPlace& place);
  /// Makes the recorded step ready for replays. Returns whether it is.
  bool finish(Shape& shape, const Batch& batch);
  Kind watch(StepRecording& recording, const Batch& batch);
  bool is_due(const StepRecording& recording) const;
  bool has_lost_memory() const;
  /// Leaves out the step just watched. Gives up where that happens again and again.
  void pass_over(const std::string& why);
  void say_recorded() const;
  void choose();
  void forget();

  const ResolvedOptions& options_;
  const TrainerState& state_;
  Strategy& strategy_;
  Precision& precision_;
  metrics::Collector& metrics_;
  const std::vector<OptimizerHandle*>& optimizers_;
  const bool is_manual_;
  WatchedStep watched_step_{is_manual_};
  ReplayedStep replayed_step_{optimizers_};
  std::unique_ptr<GraphRecorder> first_recorder_;
  const RecordedBodies bodies_;
  RecordingRefusal& refusal_;
  size_t most_shapes_ = 1;
  int64_t most_recordings_;
  std::vector<std::unique_ptr<Shape>> shapes_;
  Kind kind_ = Kind::kOrdinary;       ///< of the step under way
  StepRecording* current_ = nullptr;  ///< what it replays or is watched by; nullptr: an ordinary step
  int64_t held_results_ = 0;
  int64_t passed_over_ = 0;  ///< steps in a row
  int64_t touches_ = 0;      ///< how often the program has changed weights or buffers between steps
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
