#pragma once

#include <levin/core/accelerators/graph_recorder.h>
#include <levin/core/base/step_scaling.h>
#include <levin/core/connectors/logger_connector.h>
#include <levin/core/connectors/optimizer_connector.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/interfaces/step_output.h>
#include <levin/core/options/resolved_options.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// Optimizer steps from recorded graphs (`cuda_graph`). After some steps as ever, one is recorded, part by part:
/// forward, backward, unscaling, clipping and update, loss scale. From then on a step replays the parts, and hooks run
/// between them as ever. A replayed part does to the same memory what the recorded one did, without running its C++
/// code: its batch is copied to where the recorded one was, and its outputs and gradients are the recorded ones'
/// tensors.
///
/// A batch of another shape takes an ordinary step. Where the optimizer's parameters, state or options (other than the
/// learning rate) or the module's mode have changed, the step is recorded anew.
class RecordedStep {
 public:
  /// Parts of a step, run while recording only.
  struct Parts {
    std::function<StepOutput(const Batch&)> forward;
    std::function<void(StepOutput&)> backward;
    std::function<void(StepScaling)> update;  ///< clipping and the optimizer's step
  };

  /// Makes one; where the steps of this run cannot be recorded, returns nothing, and a warning says why.
  static std::unique_ptr<RecordedStep> make(const ResolvedOptions& options, const TrainerState& state,
                                            LoggerConnector& logger, OptimizerConnector& optimizers, Parts parts);
  ~RecordedStep();

  /// Begins a step. True: it is replayed, by the following calls in this order. False: it is an ordinary one.
  bool begin(const Batch& batch);
  const StepOutput& forward();
  void backward();
  StepScaling unscale();
  void update();
  void end_window();

 private:
  struct Conditions;
  struct Graphs;

  RecordedStep(const ResolvedOptions& options, const TrainerState& state, LoggerConnector& logger,
               OptimizerConnector& optimizers, std::unique_ptr<GraphRecorder> recorder, Parts parts);
  /// Leaves the step as it was, and gives up, where it cannot be recorded.
  void record(const Batch& batch);
  void record_parts();
  void give_up(const std::string& reason);
  bool fits(const Batch& batch) const;

  const TrainerState& state_;
  Strategy& strategy_;
  Precision& precision_;
  metrics::Collector& metrics_;
  OptimizerHandle& optimizer_;
  std::unique_ptr<GraphRecorder> recorder_;
  const Parts parts_;
  int64_t ordinary_steps_ = 0;  ///< in a row, with batches of one shape
  int64_t recordings_ = 0;
  std::string last_change_;  ///< for which the step was recorded anew
  bool gave_up_ = false;
  Batch inputs_;  ///< of the graphs; while there are none, of the shape of the last batch
  StepOutput output_;
  StepScaling scaling_;
  metrics::Collector::Recording logs_;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  ///< of each parameter that has one
  std::unique_ptr<Conditions> conditions_;                    ///< under which the graphs were recorded
  std::unique_ptr<Graphs> graphs_;
};

}  // namespace levin
