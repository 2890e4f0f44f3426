#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace levin {

/// What the user asked the trainer to do.
enum class Stage { kFit, kValidate, kTest, kPredict };

/// What the trainer does at this moment.
enum class RunningStage { kIdle, kSanityCheck, kTrain, kValidate, kTest, kPredict };

/// How the last call of the trainer went, or goes.
enum class TrainerStatus { kInitializing, kRunning, kFinished, kInterrupted, kFailed };

/// When a scheduler steps.
enum class Interval { kEpoch, kStep };

/// Whether a smaller or a larger value of a monitored metric is better.
enum class MonitorMode { kMin, kMax };

/// "fit", "validate", "test", "predict"
const char* to_string(Stage stage);
const char* to_string(RunningStage stage);
const char* to_string(TrainerStatus status);

/// A checkpoint to write; sent to loggers once it is written.
struct CheckpointEvent {
  std::string path = {};  ///< the checkpoint's folder
  int64_t epoch = 0;
  int64_t global_step = 0;
  std::string monitor = {};          ///< the monitored metric, empty when there is none
  std::optional<double> score = {};  ///< its value
  bool is_best = false;
  bool is_last = false;
  bool asynchronous = false;    ///< training goes on while it is written
  std::string supersedes = {};  ///< a checkpoint that is removed once this one is whole; may be empty
};

}  // namespace levin
