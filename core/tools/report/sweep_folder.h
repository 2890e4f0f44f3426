#pragma once

#include <levin/core/tools/report/run_folder.h>
#include <levin/core/tools/report/series.h>

#include <optional>
#include <string>
#include <vector>

namespace levin::report {

/// A row of sweep.csv. Cells are texts as they stand there; one that is empty is not known.
struct SweepRun {
  std::string name;  ///< of its folder below the sweep's
  std::string status;
  std::string rung;
  double seconds = kUnknown;
  std::vector<std::string> options;  ///< one for each of SweepFolder::options
  std::vector<std::string> metrics;  ///< one for each of SweepFolder::metrics
  std::string error;
  std::optional<size_t> folder;  ///< which of the page's runs it is; nothing while it has written none
};

/// What a sweep says of its runs.
struct SweepFolder {
  std::string path;
  std::vector<std::string> options;  ///< names of what varies, as on the command line
  std::vector<std::string> metrics;  ///< names of what the runs ended with
  std::string monitor;               ///< the metric that says which run is best; may be empty
  bool monitor_is_maximized = false;
  std::vector<SweepRun> runs;
  std::vector<std::string> notes;  ///< what was passed over while reading, as sentences
};

/// Whether a folder has what a sweep writes: sweep.csv and sweep.yaml.
bool is_sweep_folder(const std::string& path);

/// Reads sweep.csv and sweep.yaml. Throws levin::Error or ConfigError where one cannot be read or is none.
SweepFolder read_sweep_folder(const std::string& path);

/// Takes from the sweep's table how a run ended and how long it took, where the run's own files do not say.
void add_from_sweep(RunFolder& run, const SweepRun& row);

/// "lr=0.001 batch_size=64": what tells a run from the others of its sweep, options by the last part of their names
/// where that is enough.
std::string sweep_run_label(const SweepFolder& sweep, const SweepRun& run);

}  // namespace levin::report
