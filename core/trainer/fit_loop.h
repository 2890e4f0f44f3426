#pragma once

#include <levin/core/trainer/checkpoint_connector.h>
#include <levin/core/trainer/evaluation_loop.h>
#include <levin/core/trainer/fit_report.h>
#include <levin/core/trainer/hooks.h>
#include <levin/core/trainer/optimization.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace levin {

/// Epochs of training batches, with validation when due.
class FitLoop {
 public:
  FitLoop(RankCore& core, Hooks& hooks, CheckpointConnector& checkpoints, Optimization& optimization,
          EvaluationLoop& evaluation)
      : core_(core), hooks_(hooks), checkpoints_(checkpoints), optimization_(optimization), evaluation_(evaluation) {}

  /// `reload`: asks for new loaders.
  void run(const std::function<void()>& reload);
  /// A few validation batches before training, so that a mistake in validation shows at once. Leaves no trace in random
  /// generators or metrics.
  void sanity_check();
  /// How many batches an epoch and each validation have.
  void count_batches();

 private:
  enum class BatchResult { kContinue, kEndOfEpoch };

  /// A training batch, with its place among those of all ranks.
  struct Turn {
    Batch batch;
    Optimization::Place place;
    bool has_data = true;  ///< false: other ranks have data for this step and this one has not; it only takes part
    int64_t samples = 0;   ///< of all ranks
  };

  bool limits_reached() const;
  /// Asks the other ranks to stop too, or stops before this batch if they agreed to.
  bool stops_before_batch();
  /// The next batch of a pass; counts how long the loop waited for it.
  std::optional<Batch> fetch(DataLoader::Pass& pass);
  Turn next_turn(DataLoader::Pass& pass, std::optional<Batch>& fetched);
  bool should_end() const;
  /// What ended the loop, in words.
  std::string end_reason() const;
  void run_epoch();
  bool train_batches();
  /// `next`: the batch after it, where there is one.
  BatchResult train_batch(Turn turn, const std::optional<Batch>& next);
  bool validation_due() const;
  bool validate();
  void finish_epoch(bool complete);
  MetricMap unlogged_step();
  void end_by_signal();
  void suggest_workers(std::chrono::nanoseconds waited, std::chrono::nanoseconds total) const;

  RankCore& core_;
  Hooks& hooks_;
  CheckpointConnector& checkpoints_;
  Optimization& optimization_;
  EvaluationLoop& evaluation_;
  std::optional<FitReport> report_;  ///< of the fit under way
  std::vector<int64_t> validation_batches_;
  std::optional<int64_t> validate_every_;  ///< batches between validations inside an epoch
  std::chrono::steady_clock::time_point last_validation_;
  MetricMap unlogged_step_;  ///< what the last step of the last epoch has logged and no row shows yet
  bool interrupted_ = false;
  bool had_data_ = false;          ///< this rank has had a batch in this epoch
  bool time_is_up_ = false;        ///< the other ranks were told
  bool signal_passed_on_ = false;  ///< likewise
};

}  // namespace levin
