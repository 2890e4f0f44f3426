#pragma once

#include <levin/core/accelerators/comparable_recorder.h>
#include <levin/core/loops/recorded_step.h>
#include <levin/core/loops/recorded_units.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// The recorded step of one shape of batches: its parts, and the tensors through which they meet the rest of the
/// program.
class StepRecording {
 public:
  struct Context {
    Module& module;
    Precision& precision;
    metrics::Collector& metrics;
    OptimizerHandle& optimizer;
    const RecordedStep::Parts& parts;
    RecordedStep::Place place;
  };

  StepRecording(const Context& context, std::unique_ptr<GraphRecorder> recorder);
  ~StepRecording();

  /// Whether ordinary steps are watched, to be recorded and to be compared with replays.
  bool watches() const { return watcher_ != nullptr; }

  /// Whether a step that adds to gradients finds such as the recorded one did. To be asked before each step.
  bool can_add();

  // ---- Recorders that do not watch.

  /// Records the step of a batch without taking it. Throws where it cannot be recorded.
  void record(const Batch& batch);

  // ---- Those that do: the first step that is watched is recorded, later ones are compared with it.

  /// Begins to watch an ordinary step. Returns the batch for it.
  const Batch& begin_watching(const Batch& batch);
  void watch(RecordedStep::Part part, const std::function<void()>& body);
  /// Ends the step. Returns why steps cannot be replayed, or what was different; empty for nothing.
  std::string end_watching(const StepOutput& output, const StepScaling& scaling);
  bool is_finished() const { return finished_; }
  /// Returns the operator whose result somebody still holds after the first step; empty when nobody does.
  std::string held_result() const;
  /// Makes the first step ready for replays, when its output has been let go. Returns why it cannot be.
  std::string finish();

  // ---- Replays.

  /// Sets the batch that replays read.
  void read(const Batch& batch);
  /// Lets go of it.
  void release_batch();
  StepOutput forward();
  void backward();
  StepScaling unscale();
  void update();
  void end_window();

  // ---- When it was watched last.
  int64_t watched = 0;
  int64_t replays_since = 0;
  int64_t watched_epoch = -1;

 private:
  struct Graphs;
  /// Of a parameter that has one.
  struct Gradient {
    at::Tensor parameter;
    at::Tensor tensor;
    size_t result = 0;   ///< its number among the recorder's results
    size_t holders = 0;  ///< of its memory, when nobody outside holds it
  };
  /// A tensor of the step's output.
  struct Output {
    at::Tensor tensor;
    std::optional<size_t> input;  ///< of the batch, of which it is a view
    std::optional<size_t> result;
  };
  /// What a step leaves behind.
  struct Results {
    Batch outputs;
    std::vector<Output> tensors;  ///< the loss and the outputs
    bool loss_requires_grad = false;
    StepScaling scaling;
    metrics::Collector::Recording forward_logs;
    metrics::Collector::Recording update_logs;
    std::vector<Gradient> gradients;
  };

  void run_parts();
  std::vector<at::Tensor> collect(Results& results, const StepOutput& output, const StepScaling& scaling) const;
  void take_results();
  void renew_gradients_held();
  /// Copies gradients that are others than those the step works on into these. Returns false where one is missing.
  static bool copy_gradients(const std::vector<Gradient>& gradients);
  /// Undoes what hooks did that put other gradients in the place of those.
  static void put_in_place(const std::vector<Gradient>& gradients);
  /// Takes the gradients that there are as those of the window's former batches.
  void find_gradients_added_to();
  std::vector<at::Tensor> gradients_added_to() const;
  at::Tensor handed_out(const Output& output) const;

  const Context context_;
  const std::unique_ptr<GraphRecorder> recorder_;
  ComparableRecorder* const watcher_;
  Batch inputs_;                     ///< of the graphs, or of the step that is watched
  Batch batch_;                      ///< that replays read, of a watched recording
  std::vector<Gradient> added_to_;   ///< by the step under way: gradients of the window's former batches
  std::vector<at::Tensor> layouts_;  ///< of those that the recorded step added to, without memory
  std::unique_ptr<RecordedUnits> units_;
  bool finished_ = false;
  std::string failure_;  ///< of the step that is watched
  size_t next_part_ = 0;
  Results results_;
  Results watched_results_;
  StepOutput output_;  ///< of graphs
  std::unique_ptr<Graphs> graphs_;
};

}  // namespace levin
