#pragma once

#include <levin/core/tools/report/run_folder.h>

#include <cstdint>
#include <optional>
#include <string>

namespace levin::report {

/// A value that a metric is to reach.
struct Target {
  std::string metric;
  double value = 0;
};

/// Reads "val_loss=0.5". Throws levin::Error where it is none.
Target parse_target(const std::string& text);

/// When a run reached a target.
struct Reached {
  int64_t step = 0;
  double seconds = kUnknown;  ///< since the run's first event; unknown where no event file tells
};

/// The first point at which the metric is at the target or beyond it, on its good side: the one that the monitor's mode
/// or else the metric's name says, or else the side on which the first value is not. Nothing where it never is, or the
/// metric was not logged.
std::optional<Reached> time_to(const RunFolder& run, const Target& target);

}  // namespace levin::report
