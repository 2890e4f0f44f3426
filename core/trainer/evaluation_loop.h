#pragma once

#include <levin/core/trainer/checkpoint_connector.h>
#include <levin/core/trainer/hooks.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace levin {

/// Runs the validation or test loaders once.
class EvaluationLoop {
 public:
  EvaluationLoop(RankCore& core, Hooks& hooks, CheckpointConnector& checkpoints)
      : core_(core), hooks_(hooks), checkpoints_(checkpoints) {}

  /// `progress` says where to start and is kept up to date, so that a validation can be resumed at any batch. `epoch`:
  /// of the loaders' order. `in_fit`: whether this is part of fit, where a batch's end is a moment at which a
  /// checkpoint can be made. Returns false when a signal ended it early.
  bool run(RunningStage stage, const DataLoaders& loaders, const std::vector<int64_t>& batches,
           EvaluationProgress& progress, bool in_fit);

  /// One map of metrics for each loader, of the run just ended.
  const std::vector<MetricMap>& results() const { return results_; }
  /// Those of a run in another process.
  void set_results(std::vector<MetricMap> results) { results_ = std::move(results); }

 private:
  struct HookSet;
  class Step;
  /// Whether a signal ends the run here, on all ranks.
  bool interrupted_anywhere() const;
  void collect_results(size_t loaders);

  RankCore& core_;
  Hooks& hooks_;
  CheckpointConnector& checkpoints_;
  std::vector<MetricMap> results_;
};

/// Batches that the limit leaves of each loader; -1 where a loader is unsized.
std::vector<int64_t> limited_batches(const DataLoaders& loaders, const BatchLimit& limit, const std::string& option,
                                     int64_t world_size);

}  // namespace levin
