#pragma once

#include <levin/core/trainer/trainer.h>

#include <string>
#include <vector>

namespace levin {

class Batch;

/// What a fit ends with: the newest metrics, where the checkpoints and the logs are.
std::string fit_ending(const Trainer& trainer);

/// A table with a row a metric and a column a loader.
std::string metrics_table(const std::vector<MetricMap>& results);

/// Writes the predictions of each loader (join_predictions) to a safetensors file in the run's folder and says so.
/// Where nothing is to be written (fast_dev_run) it says what was predicted. Throws levin::Error that names all that
/// could not be written, after writing the rest.
std::string save_predictions(const std::vector<std::vector<Batch>>& predictions, const std::string& run_directory);

}  // namespace levin
