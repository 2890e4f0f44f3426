#pragma once

#include <levin/core/base/events.h>
#include <levin/core/base/state.h>
#include <levin/core/checkpoint/async_writer.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/checkpoint_uploader.h>
#include <levin/core/connectors/callback_connector.h>
#include <levin/core/connectors/checkpoint_finder.h>
#include <levin/core/connectors/data_connector.h>
#include <levin/core/connectors/logger_connector.h>
#include <levin/core/connectors/optimizer_connector.h>
#include <levin/core/connectors/stop_controller.h>
#include <levin/core/interchange/weight_plan.h>
#include <levin/core/interfaces/strategy.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// Turns the whole state of a rank into a tree and back, in the order that docs/architecture.md gives.
class CheckpointConnector {
 public:
  CheckpointConnector(Trainer& trainer, const ResolvedOptions& options, TrainerState& state, Tracer& tracer,
                      CallbackConnector& callbacks, DataConnector& data, LoggerConnector& logger,
                      OptimizerConnector& optimizers, StopController& stop);

  /// Writes at once, or, for an asynchronous event, copies the state and lets a thread write it; waits first for the
  /// one that is being written. With several ranks a collective. Throws what saving failed with, this time or the last.
  void save(const std::string& path, CheckpointEvent event);
  /// Writes at the next resume point, or now where this is one. Throws levin::Error outside of a call where ranks have
  /// different parts of the state.
  void save_or_defer(const std::string& path, const CheckpointEvent& event);
  /// Writes, at a resume point, what was deferred, and tells the loggers of a checkpoint that has become whole
  /// meanwhile.
  void save_deferred();
  /// Whether this is no resume point because a part of an accumulation window is divided over the ranks.
  bool waits_for_window() const;
  /// Whether a checkpoint is to be written there, or is being written.
  bool is_saving(const std::string& path) const;
  /// Waits until nothing is being written any more. Throws what saving failed with.
  void finish_saving();
  /// Waits likewise after a failure, whose error matters more: what goes wrong here is logged.
  void finish_saving_after_failure();
  /// Uploads, after a resume, what an earlier process has kept and may not have uploaded.
  void upload_kept();
  /// Waits until what was saved is uploaded as well, or cannot be, which is a warning.
  void finish_uploads() { uploaders_.clear(); }
  /// Some ranks were killed, and the others go on: gives up, with a warning, what is being written with them.
  void leave_out_ranks();

  /// Returns the path that CheckpointFinder::find finds for the call under way.
  std::string find(const std::string& ckpt) const {
    return finder_.find(ckpt, state_.stage == Stage::kFit ? CheckpointUse::kResume : CheckpointUse::kWeights);
  }
  /// Returns it for weights alone, whatever the last call was.
  std::string find_weights(const std::string& ckpt) const { return finder_.find(ckpt, CheckpointUse::kWeights); }
  /// Returns the path that rank 0 finds; a collective.
  std::string find_on_rank_zero(const std::string& ckpt) const;
  /// Opens a checkpoint of Levin or Lightning; `weights_only`: any file or folder of weights will do. Throws
  /// levin::Error.
  void read(const std::string& path, bool weights_only);

  /// Opens the weights that the option `init_from` names and compares them with the module, which must be whole yet:
  /// what is refused leaves it so. Throws levin::Error.
  void open_initial_weights();
  /// Loads them, under every strategy: each rank reads only what it holds.
  void load_initial_weights();

  /// Dumps what a fit leaves in its module, callbacks and counters, for a caller in another process.
  State dump_outcome();
  void load_outcome(const State& outcome);

  /// Copies to the host's memory what training changes on this rank, callbacks and counters apart.
  State take_snapshot();
  /// Restores a snapshot in place, to the bit; what has come into being since (state of optimizers, gradients) is gone.
  void restore_snapshot(const State& snapshot);

  /// Restores, before configure_optimizers, the module (its hook, its weights), the data module and the callbacks.
  void restore_module(bool weights_only);
  /// Restores, after on_fit_start, optimizers, schedulers, precision, loops and metrics.
  void restore_optimization(bool stays_ended);
  /// Tells the loggers that a run that would have gone on from its last checkpoint begins, since it has none.
  void restart_loggers();
  /// Restores, last of all, gradients of a window under way and the random generators.
  void restore_gradients_and_generators();
  /// Frees the tree that was read.
  void release() { tree_ = State(); }

 private:
  void write(const std::string& path, const State& tree, const CheckpointInfo& info, const CheckpointEvent& event);
  CheckpointUploader& uploader_to(const std::string& folder);
  /// Whether the tree that was read is of PyTorch Lightning.
  bool is_foreign() const { return tree_.find("lightning") != nullptr; }
  void read_weights(const std::string& path);
  void read_lightning(const std::string& path);
  /// Takes over counters, optimizers and schedulers of Lightning; what has no counterpart starts anew.
  void restore_lightning_average();
  void restore_lightning_progress();
  void restore_lightning_optimization();
  State dump();
  /// Dumps what each rank has of its own: random generators, gradients of a window under way, metrics.
  State dump_rank();
  /// Dumps the strategy's name and state on this rank; null where it has none.
  State dump_strategy() const;
  /// Hands a strategy of the same name what dump_strategy gave; nullptr: nothing was saved.
  void restore_strategy(const State* saved);
  /// Names the callbacks whose state was saved and that are not there now.
  void warn_of_missing_callbacks(const State& saved) const;
  /// Dumps the gradients that ranks hold parts of, placed as their parameters are; null where none outlast a window.
  State dump_divided_gradients() const;
  /// Whether gradients may count after the window that made them.
  bool keeps_gradients() const;
  /// Removes gradients that rank 0 has as well, to the bit, from what this rank has of its own. Collective.
  void leave_out_gradients_of_first(State& own) const;
  /// Returns a saved rank's gradients; nullptr where none were saved.
  const State* gradients_of(const State& rank) const;
  /// Returns which part of the data each saved rank trained on, and how many parts there were.
  std::vector<Strategy::DataParallelRank> saved_data_ranks() const;
  /// Returns the saved ranks that trained on this rank's part of the data; none where it was divided otherwise.
  std::vector<const State*> counterparts() const;
  void restore_metrics();
  void restore_loggers(const State& saved);
  /// Returns the strategy's state that this rank takes over, or nullptr.
  const State* saved_strategy_state() const;
  void restore_gradients();
  /// Takes over the gradients of a saved rank; false: they are parts of parameters that this rank has whole.
  bool set_own_gradients(const State& rank);
  /// Returns the mean over the saved ranks of their gradients, as set_gradients takes it.
  State mean_gradients() const;
  /// Gives parameters their mean gradients by name, of whole tensors; see dump_divided_gradients.
  void set_gradients(const State& gradients);
  std::string callback_key(size_t index) const;

  Trainer& trainer_;
  const ResolvedOptions& options_;
  TrainerState& state_;
  Tracer& tracer_;
  Strategy& strategy_;
  DividedModel& model_;
  Precision& precision_;
  CallbackConnector& callbacks_;
  DataConnector& data_;
  LoggerConnector& logger_;
  OptimizerConnector& optimizers_;
  StopController& stop_;
  CheckpointFinder finder_;
  State tree_;
  WeightPlan initial_weights_;
  std::vector<std::pair<std::string, CheckpointEvent>> deferred_;
  std::map<std::string, std::unique_ptr<CheckpointUploader>>
      uploaders_;                                  ///< by folder; before writer_, which calls them
  std::unique_ptr<AsyncCheckpointWriter> writer_;  ///< nullptr before the first asynchronous save
  std::optional<CheckpointEvent> being_written_;   ///< what loggers are told when it is whole
};

}  // namespace levin
