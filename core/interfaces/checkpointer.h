#pragma once

#include <levin/core/interfaces/callback.h>

#include <optional>
#include <string>
#include <vector>

namespace levin {

/// A callback that decides when to save: what trainer.checkpoint_callback() gives. It runs last at every moment, after
/// the module's own hooks, so that what it saves can be resumed exactly.
class Checkpointer : public Callback {
 public:
  /// Path of the checkpoint with the best monitored value, or of the newest one without a monitor; empty before the
  /// first.
  virtual std::string best_model_path() const = 0;
  virtual std::optional<double> best_model_score() const = 0;
  /// Path of the newest checkpoint; empty before the first.
  virtual std::string last_model_path() const = 0;
  /// Folder of a store that checkpoints are copied to; empty: none.
  virtual std::string remote_folder() const { return ""; }
  /// Saves `last` whatever the options say: training was asked to stop, or failed in a way that leaves a state worth
  /// keeping.
  virtual void save_last(Trainer& trainer) = 0;
  /// Paths of the checkpoints that are kept, `last` included: a resumed run uploads those that the store lacks.
  virtual std::vector<std::string> kept_paths() const { return {}; }

  /// Whether nothing that it saves can be resumed from. Such ones run before the others, whose checkpoints then know
  /// what was kept.
  virtual bool saves_weights_only() const { return false; }

  bool runs_after_metrics() const override { return true; }
};

}  // namespace levin
