#pragma once

#include <levin/core/accelerators/comparable_recorder.h>
#include <levin/core/loops/recorded_parts.h>
#include <levin/core/loops/recorded_units.h>
#include <levin/core/metrics/collector.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class Module;
class Precision;

/// The recorded step of one shape of batches: its parts, and the tensors through which they meet the rest of the
/// program.
///
/// Here those of automatic optimization; ManualRecording has those of the other kind.
class StepRecording {
 public:
  struct Context {
    Module& module;
    Precision& precision;
    metrics::Collector& metrics;
    const std::vector<OptimizerHandle*>& optimizers;
    const RecordedBodies& bodies;
    WindowPlace place;
  };

  StepRecording(const Context& context, std::unique_ptr<GraphRecorder> recorder);
  virtual ~StepRecording();

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
  virtual void watch(RecordedPart part, const std::function<void()>& body);
  /// Returns a tensor of the step for the trainer to keep, with the same memory: who holds those that training_step
  /// made is known then.
  at::Tensor own(const at::Tensor& tensor);
  /// Gives the step's output such tensors; the loss keeps its graph until backward has run.
  void take_over(StepOutput& output);
  /// Ends the step. Returns why steps cannot be replayed, or what was different; empty for nothing.
  std::string end_watching(const StepOutput& output, const StepScaling& scaling);
  /// Whether what end_watching returned is of that step alone: it was neither recorded nor compared, and others may be.
  bool was_passed_over() const { return passed_over_; }
  /// Says that the step that is watched did what replays would leave out.
  void refuse(const std::string& why) {
    if (failure_.empty()) failure_ = why;
  }
  bool is_finished() const { return finished_; }
  /// Returns which result or tensor of the batch is still held after the first step; empty when none is.
  std::string held_result() const;
  /// See ComparableRecorder.
  void note_let_go() { watcher_->note_let_go(); }
  /// Makes the first step ready for replays, when its output has been let go. Returns why it cannot be.
  virtual std::string finish();

  // ---- Replays.

  /// Sets the batch that replays read.
  void read(const Batch& batch);
  /// Lets go of it.
  void release_batch();
  StepOutput forward();
  void backward();
  /// Returns nothing, having done nothing, where hooks took a gradient away, or gave one to a parameter that had none:
  /// what remains of the step has to be ordinary then.
  std::optional<StepScaling> unscale();
  /// The same.
  bool update();
  void end_window();
  /// See ComparableRecorder.
  bool has_lost_memory() const { return watcher_ != nullptr && watcher_->has_lost_memory(); }

  // ---- When it was watched last.
  int64_t watched = 0;
  int64_t replays_since = 0;
  int64_t watched_epoch = -1;
  int64_t touches_seen = 0;
  // Replays until it is compared again, and, where the program touches the module, at the earliest.
  int64_t interval = 8;
  int64_t touched_interval = 0;

 protected:
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
    std::vector<Output> tensors;  ///< the loss, the weight and the outputs
    std::vector<Output> losses;   ///< that hooks inside of the step are given
    bool loss_requires_grad = false;
    StepScaling scaling;
    std::vector<metrics::Collector::Recording> logs;  ///< by part
    std::vector<Gradient> gradients;
  };

  /// Forgets what the former watched step left.
  virtual void begin_results() { watched_results_ = Results(); }
  /// Called after the last part of a step that can be recorded or compared, before results are collected.
  virtual void end_parts() {}
  /// Returns what the step that was watched lacks to be replayed; empty for nothing.
  virtual std::string what_is_missing(const StepOutput& output) const;
  /// Watches a part, and takes its logs.
  void watch_part(const std::function<void()>& body);
  /// Ends the logs of the part under way.
  void end_logs();
  /// Replays a part, and logs what it logged.
  void replay_part(size_t part);
  StepOutput output() const;
  at::Tensor handed_out(const Output& output) const;
  void take_results();
  /// Adds the gradient of a parameter to the results, where it is none of them. Returns its number there.
  size_t note_gradient(Results& results, const at::Tensor& parameter) const;
  /// Gives a gradient other memory where others than this object, the recorder and `known` hold it. Returns whether.
  bool renew_if_held(const Gradient& gradient, size_t known);
  /// Copies gradients that are others than those the step works on into these. Returns false, having done nothing,
  /// where one is missing or of another layout.
  static bool copy_gradients(const std::vector<Gradient>& gradients);
  /// Undoes what hooks did that put other gradients in the place of those. Returns false as copy_gradients does.
  static bool put_in_place(const std::vector<Gradient>& gradients);
  std::vector<Gradient> present_gradients() const;
  /// Returns whether a parameter has a sparse gradient, which is not recorded: a failure.
  bool refuses_sparse_gradients();
  /// Notes that the step that is watched can be neither recorded nor compared, but others may be.
  void pass_over(const std::string& why);

  const Context context_;
  ComparableRecorder* const watcher_;
  std::vector<at::Tensor> parameters_;  ///< of the module
  std::vector<Gradient> added_to_;      ///< by the step under way: those that there are when it begins
  bool finished_ = false;
  std::string failure_;  ///< of the step that is watched
  bool passed_over_ = false;
  Results results_;
  Results watched_results_;

 private:
  struct Graphs;

  void run_parts();
  void read_batch();
  /// Frees the graph of the trainer's loss after backward: what hooks of that graph hold is not kept by the step.
  void release_graph_of_loss();
  /// Notes the gradients that backward left, before hooks see them, and compares those of a replay.
  void note_gradients();
  bool has_sparse_gradient() const;
  /// Makes a replay beside the step see what hooks made of gradients; passes the step over where that cannot be.
  void take_gradients_of_hooks();
  std::string give_back_inputs();
  std::vector<at::Tensor> collect(Results& results, const StepOutput& output, const StepScaling& scaling) const;
  void renew_gradients_held();
  /// Whether gradients are those that a recorded update needs, in their place.
  bool has_gradients();
  /// Takes the gradients that there are as those of the window's former batches.
  void find_gradients_added_to();
  std::vector<at::Tensor> gradients_added_to() const;

  const std::unique_ptr<GraphRecorder> recorder_;
  Batch inputs_;                   ///< of the graphs, or of the step that is watched
  Batch batch_;                    ///< that replays read, of a watched recording
  std::vector<Gradient> layouts_;  ///< of those that the recorded step added to, without memory
  std::unique_ptr<RecordedUnits> units_;
  at::Tensor loss_;  ///< that the trainer has of the first step, up to the end of backward
  size_t next_part_ = 0;
  bool gradients_differ_ = false;         ///< between that step and a replay of it
  std::vector<Gradient> after_backward_;  ///< of the step that is watched
  std::vector<at::Tensor> ungraded_;      ///< parameters of the optimizer to which the recorded step gave no gradient
  StepOutput output_;                     ///< of graphs
  std::unique_ptr<Graphs> graphs_;
};

}  // namespace levin
