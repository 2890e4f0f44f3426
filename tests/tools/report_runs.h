#pragma once

#include <levin/core/base/file_system.h>
#include <levin/core/tools/report/series.h>
#include <levin/loggers/csv_logger.h>
#include <levin/loggers/event_file_writer.h>
#include <levin/loggers/tensorboard_logger.h>

#include "../support/tiny.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

/// Runs' folders as Levin's own loggers write them.
namespace levin::testing {

inline void write_file(const std::string& path, const std::string& content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

/// What a run logs at a step.
using LoggedAt = std::function<std::vector<MetricValue>(int64_t step)>;

struct SampleRun {
  int64_t first_step = 1;
  int64_t last_step = 100;
  int64_t steps_of_epoch = 50;
  bool csv = true;
  bool events = true;
  TrainerStatus status = TrainerStatus::kFinished;
};

inline void log_run(Logger& logger, const std::string& folder, const SampleRun& run, const LoggedAt& logged) {
  logger.start({.directory = folder, .name = "version_0"});
  logger.log_hyperparameters(Config::parse("seed: 1", {.source = "test"}));
  for (int64_t step = run.first_step; step <= run.last_step; ++step) {
    const auto values = logged(step);
    if (!values.empty()) logger.log_metrics(values, step, (step - 1) / run.steps_of_epoch);
  }
  logger.finish(run.status);
}

inline void write_run(const std::string& folder, const SampleRun& run, const LoggedAt& logged) {
  if (run.csv) {
    CsvLogger logger;
    log_run(logger, folder, run, logged);
  }
  if (run.events) {
    TensorBoardLogger logger;
    log_run(logger, folder, run, logged);
  }
}

/// The path of the only event file of a run.
inline std::string event_file(const std::string& folder) {
  for (const auto& name : FileSystem::current().list(folder))
    if (name.starts_with("events.out")) return folder + "/" + name;
  ADD_FAILURE() << "no event file in " << folder;
  return "";
}

}  // namespace levin::testing
