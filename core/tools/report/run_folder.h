#pragma once

#include <levin/core/base/flat_config.h>
#include <levin/core/tools/report/series.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin::report {

enum class RunStatus {
  kUnknown,     ///< neither an event file says nor a sweep's table
  kUnfinished,  ///< a session began and no end is written: it runs, or it was killed
  kFinished,
  kFailed,  ///< or was interrupted
};

/// A file beside the metrics that a reader may want to open.
struct RunFile {
  std::string path;  ///< below the run's folder
  uint64_t size = 0;
};

/// What the callback data_summary wrote about the training data.
struct DataSeen {
  struct Tensor {
    std::string name;
    std::string shape;  ///< "[64, 3, 224, 224]"
    std::string type;
    double min = kUnknown;
    double max = kUnknown;
    double mean = kUnknown;
  };
  std::vector<Tensor> tensors;                           ///< of the first batch
  std::vector<std::pair<std::string, int64_t>> classes;  ///< names and how often each occurred
  int64_t examples = 0;                                  ///< that were counted
  std::string picture;                                   ///< a PNG file's bytes; empty: there is none
};

/// What the loggers, profilers and the trainer left in a run's folder.
struct RunFolder {
  std::string path;
  SeriesTable metrics;
  FlatConfig configuration;  ///< of config.yaml, or else of hparams.yaml
  /// The metric by which checkpoints are chosen, or else training is stopped; empty when the configuration has none.
  std::string monitor;
  bool monitor_is_maximized = false;
  RunStatus status = RunStatus::kUnknown;
  double first_time = kUnknown;  ///< of the events, in seconds since 1970
  double last_time = kUnknown;
  double seconds = kUnknown;             ///< from the first event to the last
  std::vector<RunFile> profiles;         ///< tables of profilers: profile_STAGE_rankN.txt, *.operators.txt
  std::vector<RunFile> traces;           ///< *.pt.trace.json, *.pt.trace.json.gz
  std::vector<std::string> checkpoints;  ///< folders below the run's
  std::optional<DataSeen> data;
  std::vector<std::string> notes;  ///< what was passed over while reading, as sentences
};

/// Whether a folder has a file that a run writes.
bool is_run_folder(const std::string& path);

/// Reads event files and metrics.csv and merges them: no point is there twice. What a run that still trains has not
/// written to its end is left out. Throws levin::Error when there is no such folder, it is not a run's, or a file
/// cannot be read.
RunFolder read_run_folder(const std::string& path);

}  // namespace levin::report
