#pragma once

#include <memory>
#include <string>
#include <vector>

namespace levin {

class Logger;
struct TrainerOptions;

/// A folder that is to be written to: one with a name, or a new one.
struct FolderChoice {
  std::string root = {};  ///< where `path` is empty, the folder is a new version_N below this one
  std::string path = {};

  bool operator==(const FolderChoice&) const = default;
};

/// Returns the run's folder: `run_dir`, else that of the first logger whose files have fixed names, else a new one
/// below default_root_dir.
FolderChoice run_folder(const TrainerOptions& options, const std::vector<std::shared_ptr<Logger>>& loggers);

/// Returns the folder of a logger, equal to `of_run` where both are one.
FolderChoice logger_folder(const TrainerOptions& options, const Logger& logger, const FolderChoice& of_run);

/// Throws ConfigError naming two loggers of one class that would write the same files.
void refuse_shared_folders(const TrainerOptions& options, const std::vector<std::shared_ptr<Logger>>& loggers,
                           const FolderChoice& of_run);

}  // namespace levin
