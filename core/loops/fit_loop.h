#pragma once

#include <levin/core/connectors/connectors.h>
#include <levin/core/loops/evaluation_loop.h>
#include <levin/core/loops/fit_report.h>
#include <levin/core/loops/training_step.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

namespace levin {

class IndependentSteps;

/// Runs epochs of training batches, with validation when due.
class FitLoop {
 public:
  FitLoop(Connectors& connectors, TrainingStep& step, EvaluationLoop& evaluation);

  void run();
  /// Validates a few batches before training, so that a mistake in validation shows at once. Leaves no trace in random
  /// generators or metrics.
  void sanity_check();
  /// See Trainer::replay_training_data.
  void replay_training_data();

  // ---- Steps without the loop: a caller of its own takes what `run` does apart. See Rank, whose contracts these have.

  /// Called where `run` would be. Goes on where a checkpoint was saved. Throws levin::Error for one of a validation
  /// under way.
  void begin_steps();
  /// Trains on a batch of this rank. `is_last`: of the epoch begun.
  StepOutput train_step(Batch batch, bool is_last);
  void begin_epoch();
  /// Ends the epoch begun, between two accumulation windows.
  void end_epoch();
  /// Leaves the epoch begun without an end, after an error in it: the next one goes on with it.
  void leave_epoch() { in_epoch_ = false; }
  bool in_epoch() const { return in_epoch_; }
  /// Validates on the loaders of DataConnector::set_validation_loaders; returns a map of metrics for each.
  const std::vector<MetricMap>& run_validation();
  /// Position, in a loader of the caller's, of the batch that the next step trains on.
  DataLoaderPosition next_position(const DataLoader& loader);
  /// Whether training is to end before the next batch, at a limit or because it was asked for; alike on all ranks.
  bool wants_to_end();
  void end_steps();

 private:
  using Clock = std::chrono::steady_clock;
  using BatchAndInfo = std::pair<Batch, BatchInfo>;
  enum class BatchResult { kContinue, kEndOfEpoch };

  void begin();
  void run_epochs();
  void run_epoch();
  void start_epoch();
  void go_to_next_epoch();
  /// Tells the other ranks of what this one knows, once before each batch.
  void agree_on_next_batch();
  /// Whether that has been done for the next one, on each of several ranks.
  bool has_announced_next() const;
  /// Examples in a usual batch of one rank, as rank 0 has found them first.
  int64_t usual_examples(int64_t own);
  void follow_step_metrics();
  /// Returns false when training ends inside the epoch.
  bool train_batches();
  /// The same where ranks take their steps independently of each other, and meet at the end.
  bool train_independently(IndependentSteps& steps);
  void check_independent_steps() const;
  /// Goes on to a batch of this epoch, other ranks having trained on those before it.
  void count_batches_to(int64_t batch, const data::TakenBatches& batches);
  /// Whether a batch is read just before its step, in the memory that the one before it has left: what a CPU reads for
  /// itself is then in its caches. Of data whose last batch is known beforehand.
  bool reads_before_step() const;
  /// Takes the batch that was fetched, and fetches the one after it where may_look_ahead(): one batch of lookahead
  /// tells whether this is the last one.
  BatchAndInfo next_batch(DataLoader::Pass& pass, std::optional<Batch>& fetched);
  /// Whether the next batch may be fetched before this one's step: unless the loader says otherwise, and then too where
  /// no optimizer step ends this batch, so that an accumulation window knows its end.
  bool may_look_ahead() const;
  /// Fetches the next batch after the step of this one. Returns whether there is one, on any rank; a collective where
  /// the ranks have data of their own.
  bool fetch_after_step(DataLoader::Pass& pass, std::optional<Batch>& next, const BatchInfo& info);
  /// Throws ConfigError where the strategy cannot train on as much data as each rank happens to have.
  void require_uneven_inputs() const;
  /// `next`: the batch after it, where there is one. `pass`: of which that is fetched after the step; nullptr: it has
  /// been fetched.
  BatchResult train_batch(Batch host_batch, const BatchInfo& info, std::optional<Batch>& next, DataLoader::Pass* pass);
  void log_step_row(int64_t batch_idx);
  /// Warns of a loss that is no number. `may_wait`: the device is waited for here anyway.
  void check_loss(int64_t batch_idx, bool may_wait);
  bool validation_due() const;
  /// Notes of an error of communication that the module's hook ended the epoch on some ranks only.
  void note_early_end(ErrorNotes& notes) const;
  /// Does what follows a batch and the checkpoint of it: validation where it is due. Returns false when a signal ended
  /// it.
  bool finish_batch();
  bool validate();
  /// `complete`: false when training ends inside the epoch, which a resumed run then goes on with.
  void finish_epoch(bool complete);
  /// Returns what the last step logged, where it was no logging boundary: nothing else has its values once the epoch
  /// has been summed up. With several ranks a collective.
  MetricMap unlogged_step();
  /// Gives the loggers what that step has logged.
  void log_last_step();
  bool has_all_epochs() const;
  /// Whether training ends with the epoch, or the part of one, that is over.
  bool ends_here() const;
  void end_by_signal();
  void suggest_workers(std::chrono::nanoseconds waited, std::chrono::nanoseconds total) const;
  bool epoch_has_batches() const { return !data_.train_batches() || *data_.train_batches() > 0; }

  const ResolvedOptions& options_;
  TrainerState& state_;
  FitProgress& progress_;  ///< of the state
  Tracer& tracer_;
  Strategy& strategy_;
  DividedModel& model_;
  CallbackConnector& callbacks_;
  DataConnector& data_;
  LoggerConnector& logger_;
  OptimizerConnector& optimizers_;
  StopController& stop_;
  CheckpointConnector& checkpoints_;
  TrainingStep& step_;
  EvaluationLoop& evaluation_;
  std::optional<FitReport> report_;  ///< of the fit under way
  Clock::time_point last_validation_;
  int64_t begun_batch_ = -1;   ///< of this epoch, which the module's hook let begin last
  int64_t last_own_step_ = 0;  ///< where steps are independent: after this rank's last batch
  MetricMap unlogged_step_;    ///< what the last step of the last epoch has logged and no row shows yet

  // ---- Steps without the loop.
  bool is_driven_ = false;
  bool in_epoch_ = false;
  int64_t agreed_batch_ = -1;   ///< newest one before which ranks have told each other
  int64_t usual_examples_ = 0;  ///< 0: not known yet
};

}  // namespace levin
