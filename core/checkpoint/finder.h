#pragma once

#include <optional>
#include <string>
#include <vector>

namespace levin {

// `module_type` below: the C++ type whose runs are looked at, as checkpoints have it in their hyper-parameters; empty
// for all runs. Those of other modules are passed over, which a line says; a run that does not tell its module fits.

/// The newest run below `default_root_dir`: of the folders `version_N` with a folder `checkpoints` that holds a
/// checkpoint (whole or not), the one with the highest N.
std::optional<std::string> newest_run(const std::string& default_root_dir, const std::string& module_type = "");

/// The checkpoints of a run, newest first: by global step, then epoch, then time of writing, as their manifests say.
/// Those whose manifest cannot be read come before all others, since nothing says that they are older.
std::vector<std::string> checkpoints_of(const std::string& run);

/// The newest checkpoint of a run that is whole; a warning tells of each newer one that is not. Throws levin::Error
/// when there is none.
std::string newest_checkpoint(const std::string& run);

/// The newest checkpoint of the newest run that is whole; a warning tells of each newer one that is not. Throws
/// levin::Error saying what was looked for where when there is none.
std::string find_last(const std::string& default_root_dir, const std::string& module_type = "");

/// The best checkpoint of a run: what the newest whole checkpoint has as "best_model_path" in its callbacks'
/// state, of a callback with a score rather than one without a monitor. Where that path is no more, the checkpoint of
/// that name among the run's own, for runs that were moved. Throws levin::Error saying what was looked for where when
/// there is none, or when it is damaged.
std::string best_checkpoint(const std::string& run);

/// The best checkpoint of the newest run. Throws levin::Error when there is no run, and as best_checkpoint does.
std::string find_best(const std::string& default_root_dir, const std::string& module_type = "");

}  // namespace levin
