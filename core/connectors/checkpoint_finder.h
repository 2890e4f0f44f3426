#pragma once

#include <levin/core/checkpoint/finder.h>
#include <levin/core/connectors/callback_connector.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/options/resolved_options.h>

#include <string>

namespace levin {

/// Finds the checkpoint that a call starts from, on this host and in stores.
class CheckpointFinder {
 public:
  CheckpointFinder(const ResolvedOptions& options, const TrainerState& state, const CallbackConnector& callbacks)
      : options_(options), state_(state), callbacks_(callbacks) {}

  /// Returns the path that "last", "auto", "best", a path or an address in a store means; empty for a fresh start. What
  /// is in a store is downloaded into the folder `remote` of default_root_dir.
  std::string find(const std::string& ckpt, CheckpointUse use) const;

 private:
  /// Returns what "auto" and "last" mean where checkpoints were uploaded: of those here and there the newest.
  std::string find_newest(const std::string& ckpt, const std::string& remote_folder, CheckpointUse use) const;
  std::string find_here(const std::string& ckpt, CheckpointUse use) const;
  std::string downloads() const;
  /// Names the C++ type of the module, by which its runs are found among others.
  std::string module_type() const;

  const ResolvedOptions& options_;
  const TrainerState& state_;
  const CallbackConnector& callbacks_;
};

}  // namespace levin
