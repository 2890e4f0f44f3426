#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin::sweep {

/// Metrics by name, in the order of metrics.csv.
using Metrics = std::vector<std::pair<std::string, double>>;

/// The last value of each metric in the run's metrics.csv, of the first so many epochs where `epochs` is given. Empty
/// where there is no such file.
Metrics last_metrics(const std::string& run_folder, std::optional<int64_t> epochs = {});

/// Why a run failed, as the last error that it printed to its output.txt says, in one line; empty where it printed
/// none.
std::string last_error(const std::string& run_folder);

}  // namespace levin::sweep
