#pragma once

#include <levin/core/sweep/settings.h>
#include <levin/core/sweep/sweep_options.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin::sweep {

/// What the runs of a sweep are.
struct Plan {
  std::vector<std::string> options;  ///< that vary: those of the list, of the grid, then random ones
  std::vector<Settings> runs;        ///< of each run; the repeats of a combination follow each other
};

/// Works out the runs: each entry of the list with each combination of the grid with each draw, less what `exclude` and
/// `only_when` take away, each as often as `repeats` says with seeds from `first_seed` on. The same options give the
/// same plan. Throws ConfigError, also for a plan without a run.
Plan make_plan(const SweepOptions& options, int64_t first_seed, SettingMeanings& meanings);

}  // namespace levin::sweep
