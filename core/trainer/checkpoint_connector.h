#pragma once

#include <levin/core/base/events.h>
#include <levin/core/base/state.h>
#include <levin/core/checkpoint/async_writer.h>
#include <levin/core/checkpoint/checkpoint_info.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

class RankCore;

/// Turns the whole state of a rank into a tree and back, in the order that docs/architecture.md gives.
class CheckpointConnector {
 public:
  explicit CheckpointConnector(RankCore& core) : core_(core) {}

  /// Writes at once, or, for an asynchronous event, copies the state and lets a thread write it; waits first for the
  /// one that is being written. With several ranks a collective. Throws what saving failed with, this time or the last.
  void save(const std::string& path, CheckpointEvent event);
  /// Writes at the next moment that can be resumed exactly.
  void defer(const std::string& path, const CheckpointEvent& event) { deferred_.emplace_back(path, event); }
  /// Such a moment: writes what was deferred, and tells the loggers of a checkpoint that has become whole meanwhile.
  void save_deferred();
  /// Whether this is no such moment because a part of an accumulation window is divided over the ranks.
  bool waits_for_window() const;
  /// Waits until nothing is being written any more. Throws what saving failed with.
  void finish_saving();
  /// The same after a failure, whose error matters more: what goes wrong here is logged.
  void finish_saving_after_failure();

  /// The path that "last", "auto", "best" or a path means; empty for a fresh start.
  std::string find(const std::string& ckpt) const;
  /// The same as rank 0 finds it; a collective.
  std::string find_on_rank_zero(const std::string& ckpt) const;
  void read(const std::string& path, bool weights_only);

  /// What a fit leaves in its module, callbacks and counters, for a caller in another process.
  State dump_outcome();
  void load_outcome(const State& outcome);

  /// What training changes on this rank, callbacks and counters apart, copied to the host's memory.
  State take_snapshot();
  /// Puts it back in place, to the bit; what has come into being since (state of optimizers, gradients) is gone.
  void restore_snapshot(const State& snapshot);

  /// Before configure_optimizers: the module's hook, its weights, the data module, the callbacks.
  void restore_module(bool weights_only);
  /// After on_fit_start: optimizers, schedulers, precision, loops, metrics.
  void restore_optimization();
  /// Last: gradients of a window under way and the random generators.
  void restore_moment();
  /// Lets go of what was read.
  void release() { tree_ = merged_ = State(); }

 private:
  void write(const std::string& path, const State& tree, const CheckpointInfo& info, const CheckpointEvent& event);
  State dump();
  State dump_optimizers() const;
  State dump_schedulers() const;
  void restore_optimizers(const State& optimizers, const State& schedulers);
  /// What each rank has of its own: random generators, gradients of a window under way, metrics.
  State dump_rank();
  /// This rank's part of the tree that was read, or what it takes over from ranks that are no more.
  const State& rank_state();
  State merged_rank_state(int64_t saved_ranks) const;
  std::string callback_key(size_t index) const;
  /// The C++ type of the module, by which its runs are found among others.
  std::string module_type() const;

  RankCore& core_;
  State tree_;
  State merged_;  ///< see rank_state
  std::vector<std::pair<std::string, CheckpointEvent>> deferred_;
  std::unique_ptr<AsyncCheckpointWriter> writer_;  ///< nullptr before the first asynchronous save
  std::optional<CheckpointEvent> being_written_;   ///< what loggers are told when it is whole
};

}  // namespace levin
