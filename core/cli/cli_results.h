#pragma once

#include <levin/core/trainer/trainer.h>

#include <string>
#include <vector>

namespace levin {

class Batch;

/// Returns the lines that end a fit: the newest metrics and the paths of checkpoints and logs.
std::string fit_ending(const Trainer& trainer);

/// Writes the predictions of each loader (join_predictions) to a safetensors file in the run's folder and returns a
/// line that says so. When nothing is to be written (fast_dev_run), says what was predicted. After writing the rest,
/// throws levin::Error naming all that could not be written.
std::string save_predictions(const std::vector<std::vector<Batch>>& predictions, const std::string& run_directory);

}  // namespace levin
