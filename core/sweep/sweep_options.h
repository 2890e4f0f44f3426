#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
#include <levin/core/sweep/executor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin::sweep {

/// Early stopping of bad runs by asynchronous successive halving (ASHA).
struct SuccessiveHalvingOptions {
  int64_t min_epochs = 1;       ///< epochs that every run gets
  double reduction_factor = 3;  ///< one of so many goes on at each rung, to so many times the epochs
  static void describe(Schema<SuccessiveHalvingOptions>& schema);
};

/// A learning rate that is given for one batch size and scaled to that of each run.
struct LearningRateScalingOptions {
  std::string option = "model.lr";  ///< the learning rate
  int64_t batch_size = 0;           ///< global batch size for which it is given; must be set
  std::string rule = "linear";      ///< linear, or sqrt
  static void describe(Schema<LearningRateScalingOptions>& schema);
};

/// The section `sweep` of a program's configuration.
struct SweepOptions {
  // What varies
  Config grid = Config::mapping();       ///< option: list of values; each combination is a run
  Config list = Config::sequence();      ///< mappings of options, each with each combination of the grid
  Config random = Config::mapping();     ///< option: distribution
  int64_t samples = 10;                  ///< draws from `random`
  int64_t sample_seed = 0;               ///< of the draws
  Config exclude = Config::sequence();   ///< combinations that are left out
  Config only_when = Config::mapping();  ///< option: {other option: value or values}
  int64_t repeats = 1;                   ///< runs of each combination, each with a seed of its own

  // What follows from it
  std::optional<int64_t> global_batch_size = {};  ///< data.batch_size is this over the number of devices
  std::optional<LearningRateScalingOptions> learning_rate_scaling = {};

  // What counts
  std::string monitor = "val_loss";  ///< metric by which runs are compared
  std::string mode = "min";          ///< min or max
  std::optional<SuccessiveHalvingOptions> successive_halving = {};

  // Where and how many at once
  std::string name = {};                  ///< of the folder below default_root_dir/sweeps; empty: version_N
  std::string dir = {};                   ///< the sweep's folder in place of that
  int64_t parallel = 1;                   ///< runs at a time
  Spec<Executor> executor = "local";      ///< where runs go
  std::vector<std::string> command = {};  ///< words that are put before the command line of each run

  static void describe(Schema<SweepOptions>& schema);
};

}  // namespace levin::sweep
