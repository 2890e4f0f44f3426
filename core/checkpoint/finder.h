#pragma once

#include <optional>
#include <string>
#include <vector>

namespace levin {

// `module_type` below: the C++ type of the module, as in checkpoints' hyper-parameters; empty for all runs. Runs of
// other modules are passed over with a message; a run that does not name its module counts.

/// Returns the newest run below `default_root_dir`: of the folders `version_N` whose folder `checkpoints` holds a
/// checkpoint (whole or not), the one with the highest N.
std::optional<std::string> newest_run(const std::string& default_root_dir, const std::string& module_type = "");

/// Returns the checkpoints of a run, newest first: by global step, then epoch, then time of writing in their manifests.
/// Those whose manifest cannot be read come before all others, since nothing says that they are older.
std::vector<std::string> checkpoints_of(const std::string& run);

/// What a checkpoint is looked for: one of weights alone (`save_weights_only`) is passed over where training is to go
/// on, unless the run has no others.
enum class CheckpointUse { kWeights, kResume };

/// Returns the newest whole checkpoint of a run; warns of each newer one that is not whole. Throws levin::Error when
/// there is none.
std::string newest_checkpoint(const std::string& run, CheckpointUse use = CheckpointUse::kWeights);

/// Returns the newest whole checkpoint of the newest run, as newest_checkpoint does. Throws levin::Error saying what
/// was looked for where when there is none.
std::string find_last(const std::string& default_root_dir, const std::string& module_type = "",
                      CheckpointUse use = CheckpointUse::kWeights);

/// Returns the best checkpoint of a run: the "best_model_path" in the callbacks' state of its newest whole checkpoint
/// that is not of weights alone, from a callback with a score rather than one without a monitor. When that path is
/// gone, as in a run that was moved, returns the run's checkpoint of the same name. Throws levin::Error saying what was
/// looked for where when there is none, or when it is damaged.
std::string best_checkpoint(const std::string& run);

/// Returns the best checkpoint of the newest run. Throws levin::Error when there is no run, and as best_checkpoint
/// does.
std::string find_best(const std::string& default_root_dir, const std::string& module_type = "");

}  // namespace levin
