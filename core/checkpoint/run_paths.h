#pragma once

#include <levin/core/base/state.h>

#include <string>

namespace levin {

/// Paths in a saved state, relative to the run's folder: a run that was moved, or that goes on from another working
/// folder, finds what it has written. Also reads states from before that, whose paths are as they were given.
class RunPaths {
 public:
  /// Sets the run's folder; empty: there is none, and paths are saved as they are.
  void set_run(const std::string& folder) { run_ = folder; }
  /// Returns what is saved for a path.
  std::string to_saved(const std::string& path) const;
  /// Writes to the state that has them what to_path needs.
  void save(State& state) const;

  /// Writes to a checkpoint's tree where the run's folder lies from the checkpoint.
  static void save_run(State& tree, const std::string& checkpoint, const std::string& run);
  /// Whether the checkpoint, whose tree that is, was saved by a run in this folder, or in one that was moved here with
  /// it.
  static bool is_of_run(const State& tree, const std::string& checkpoint, const std::string& run);
  /// Notes the checkpoint whose state is loaded next; `tree` has what save_run wrote.
  void note_checkpoint(const std::string& checkpoint, const State& tree);
  /// Reads what `save` wrote.
  void load(const State& state);
  /// Returns where the file lies now that `saved` stands for; empty where there is none.
  std::string to_path(const std::string& saved) const;

 private:
  std::string run_;
  // Of the state that is loaded:
  bool is_relative_ = false;
  std::string checkpoint_;   ///< empty: the state comes from no checkpoint
  std::string moved_run_;    ///< the run's folder, as it lies from the checkpoint; empty: not known
  std::string run_of_then_;  ///< the run's folder where it was saved
};

}  // namespace levin
