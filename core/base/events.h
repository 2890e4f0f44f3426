#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace levin {

/// Task that the user gave the trainer.
enum class Stage { kFit, kValidate, kTest, kPredict };

/// Loop that the trainer runs at this moment.
enum class RunningStage { kIdle, kSanityCheck, kTrain, kValidate, kTest, kPredict };

/// Outcome of the trainer's last call, or state of the one under way.
enum class TrainerStatus { kInitializing, kRunning, kFinished, kInterrupted, kFailed };

/// Unit in which a scheduler steps.
enum class Interval { kEpoch, kStep };

/// Direction in which a monitored metric improves.
enum class MonitorMode { kMin, kMax };

/// Returns "fit", "validate", "test" or "predict".
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
  bool weights_only = false;    ///< nothing that training would go on with
  std::string format = {};      ///< safetensors, pytorch or lightning: one file; empty or levin: a folder
  std::string supersedes = {};  ///< a checkpoint that is removed once this one is whole; may be empty
  std::string upload_to = {};   ///< a folder of a store that it is copied to once it is whole; may be empty
};

}  // namespace levin
