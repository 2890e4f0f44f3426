#pragma once

#include <levin/core/base/state.h>
#include <levin/core/data/batch.h>
#include <levin/core/metrics/metric_map.h>

#include <string>
#include <vector>

namespace levin {

/// Result of a call of the trainer, also from ranks that are other processes.
struct RunResult {
  std::vector<MetricMap> metrics;               ///< of validate and test, one map for each loader
  std::vector<std::vector<Batch>> predictions;  ///< one list for each loader
  std::vector<std::string> reports;             ///< of the tuners of tune

  // ---- What the call has changed, where its ranks were other processes.
  std::string run_directory;
  int signal = 0;               ///< that came; 0: none
  bool is_interrupted = false;  ///< a signal or the stop token ended the call
  std::string stop_reason;      ///< why a fit was asked to stop; empty: it was not
  State fit;                    ///< see CheckpointConnector::dump_outcome; null for other calls

  /// Writes it below `directory`, for the process that made the call.
  void write(const std::string& directory) const;
  static RunResult read(const std::string& directory);
};

}  // namespace levin
