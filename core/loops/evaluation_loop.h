#pragma once

#include <levin/core/connectors/connectors.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace levin {

/// Runs the loaders of a validation, a test or a prediction once.
class EvaluationLoop {
 public:
  explicit EvaluationLoop(Connectors& connectors);

  /// Validates or tests. `batches`: of each loader, after limits. `progress` says where to start and is kept up to
  /// date, so that a validation can be resumed at any batch. Returns false when a signal ended it early.
  bool run(RunningStage stage, const DataLoaders& loaders, const std::vector<int64_t>& batches,
           EvaluationProgress& progress);
  /// Metrics of the run just ended, one map for each loader; none where a signal ended it.
  const std::vector<MetricMap>& results() const { return results_; }

  /// Predicts; returns the predictions of every batch, one list for each loader, on the CPU. With several ranks those
  /// of all, on each: the ranks' parts of a batch are one, unless they differ in more than the number of rows.
  /// `keep` false: callbacks alone get them, and nothing is returned; unset: where one of them takes them.
  std::vector<std::vector<Batch>> predict(const DataLoaders& loaders, const std::vector<int64_t>& batches,
                                          std::optional<bool> keep);

  // ---- One batch of a caller's own, which is of no loader: hooks are those of the transfer and of the modes alone.

  /// Runs validation_step. What it logs is among the newest values then, of this rank alone; loggers do not get it.
  StepOutput evaluate_batch(Batch host_batch);
  /// Runs predict_step. The result stays on the device.
  Batch predict_batch(Batch host_batch);

 private:
  struct Hooks;
  class Step;

  /// What is left of `run` and `predict` within the scope.
  bool stops_for_signals() const;
  bool run_in_scope(const Hooks& hooks, const DataLoaders& loaders, EvaluationProgress& progress);
  std::vector<std::vector<Batch>> predict_in_scope(const DataLoaders& loaders, bool keeps);
  using Visitor = std::function<void(const Batch&, int64_t batch_idx)>;

  /// Gives `visitor` the batches of the loader that `progress` is at; where all ranks run forward together, this rank
  /// joins the others until none has data. Returns false when a signal ends the call here.
  bool visit(const DataLoader& loader, const DataLoaderPosition& start, EvaluationProgress& progress, const char* span,
             const char* fetch, const Visitor& visitor);
  void collect_results(size_t loaders);
  Batch run_predict_step(const Batch& batch, int64_t batch_idx, int64_t dataloader_idx);

  const ResolvedOptions& options_;
  TrainerState& state_;
  Tracer& tracer_;
  Strategy& strategy_;
  DividedModel& model_;
  CallbackConnector& callbacks_;
  DataConnector& data_;
  LoggerConnector& logger_;
  CheckpointConnector& checkpoints_;
  StopController& stop_;
  std::vector<MetricMap> results_;
};

}  // namespace levin
