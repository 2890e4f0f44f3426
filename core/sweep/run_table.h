#pragma once

#include <levin/core/base/events.h>
#include <levin/core/sweep/run_results.h>
#include <levin/core/sweep/settings.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin::sweep {

/// How far a run has come.
enum class RunStatus { kWaiting, kRunning, kStoppedEarly, kFinished, kFailed };

/// A run of a sweep, and what is known of it.
struct Run {
  int64_t number = 0;
  Settings settings = {};
  size_t combination = 0;  ///< equal for runs whose settings mean the same but for the seed
  RunStatus status = RunStatus::kWaiting;
  size_t rung = 0;         ///< on which it is, or was stopped
  double seconds = 0;      ///< wall time of all its starts
  Metrics metrics = {};    ///< that it ended with
  std::string error = {};  ///< one line

  /// "0007", the name of its folder.
  std::string name() const;
  /// The last value of a metric.
  std::optional<double> metric(const std::string& wanted) const;
};

/// All runs of a sweep: sweep.csv, and the table that is printed at the end.
struct RunTable {
  std::vector<std::string> options = {};  ///< that vary
  std::string monitor = {};
  MonitorMode mode = MonitorMode::kMin;
  bool has_rungs = false;
  std::vector<Run> runs = {};

  std::string to_csv() const;
  /// Takes over status, rung, seconds and error of each run from the text of a sweep.csv.
  void restore(const std::string& csv);

  /// The best one of those that are finished, or else of those that were stopped; nullptr where none has the metric.
  const Run* best() const;
  /// Says why there is no best run although some have logged metrics; else "".
  std::string why_no_best() const;
  /// A row a run, the best one marked, then what failed and which was best. `folder`: the sweep's.
  std::string to_text(const std::string& folder) const;
};

}  // namespace levin::sweep
