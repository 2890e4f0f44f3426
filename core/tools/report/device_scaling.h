#pragma once

#include <levin/core/tools/report/run_folder.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin::report {

/// How many devices a run trained on: what throughput_monitor logged, else what the configuration says; nothing where
/// neither is a number.
std::optional<int64_t> devices_of(const RunFolder& run);

/// "resnet50v2 on cifar10": the names of model and data set, as the configuration has them; may be empty.
std::string label_of(const RunFolder& run);

/// What runs on one number of devices took; means over their epochs, and over the runs.
struct ScalingRow {
  int64_t devices = 0;
  std::vector<size_t> runs;  ///< indices
  double epoch_seconds = kUnknown;
  double samples_per_second = kUnknown;
  double speedup = kUnknown;  ///< against the fewest devices of the series
};

/// Runs of one model on one data set, by rising number of devices.
struct ScalingSeries {
  std::string label;  ///< of its runs
  std::vector<ScalingRow> rows;
};

/// From the metrics throughput/epoch_seconds and throughput/epoch_samples; runs without them are left out.
std::vector<ScalingSeries> find_scaling(const std::vector<RunFolder>& runs);

}  // namespace levin::report
