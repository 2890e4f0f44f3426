#pragma once

#include <levin/core/accelerators/comparable_recorder.h>
#include <levin/core/loops/recorded_step.h>

#include <memory>
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
  };

  /// Records the step of a batch, and takes it back. Throws where it cannot be recorded.
  StepRecording(const Context& context, std::unique_ptr<GraphRecorder> recorder, const Batch& batch);
  ~StepRecording();

  /// Sets the batch that replays read.
  void read(const Batch& batch);
  /// Lets go of it.
  void release_batch();
  StepOutput forward();
  void backward();
  StepScaling unscale();
  void update();
  void end_window();

  /// Whether replays can be compared with ordinary steps.
  bool is_comparable() const { return comparable_ != nullptr; }
  /// Returns what an ordinary step of the batch read does differently; empty for nothing. Takes both back.
  std::string difference();

  // ---- When it was compared last.
  int64_t checks = 0;
  int64_t replays_since = 0;
  int64_t checked_epoch = -1;

 private:
  struct Graphs;
  /// Of a parameter that has one.
  struct Gradient {
    at::Tensor parameter;
    at::Tensor tensor;
    size_t holders = 0;  ///< of its memory, when nobody outside holds it
  };
  /// What a step leaves behind.
  struct Results {
    StepOutput output;
    bool loss_requires_grad = false;
    StepScaling scaling;
    metrics::Collector::Recording forward_logs;
    metrics::Collector::Recording update_logs;
    std::vector<Gradient> gradients;

    std::vector<at::Tensor> tensors() const;
  };

  Results run_parts(Graphs& graphs);
  at::Tensor handed_out(const at::Tensor& result) const;

  const Context context_;
  const std::unique_ptr<GraphRecorder> recorder_;
  ComparableRecorder* const comparable_;
  Batch inputs_;
  Batch batch_;  ///< that inputs_ reads, where recordings are comparable
  Results results_;
  std::unique_ptr<Graphs> graphs_;
};

}  // namespace levin
