#pragma once

#include <levin/loggers/background_worker.h>
#include <levin/loggers/wandb_file.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Contents of a run of W&B, as records for a BackgroundWorker.
namespace wandb {

/// A name and its value as JSON.
struct Item {
  std::string key;
  std::string json;
};

/// Identity of a run.
struct Run {
  std::string id;
  std::string entity;
  std::string project;
  std::string name;
  std::string group;
  std::string notes;
  std::vector<std::string> tags;
  double start_seconds = 0;
};

std::string run_record(const Run& run);
std::string config_record(const std::vector<Item>& items);
/// Makes a record that draws metrics without an axis of their own over `step_metric`.
std::string step_metric_record(const std::string& step_metric);
/// Makes a record of a row, whose number in the run is given to it when it is written.
std::string history_record(const std::vector<Item>& items);
/// Makes a record of what W&B's *System* panel shows, sampled at a time (in seconds since 1970).
std::string stats_record(const std::vector<Item>& items, double seconds);
std::string summary_record(const std::vector<Item>& items);
/// `message`: a serialised wandb_internal.ArtifactRecord.
std::string artifact_record(const std::string& message);
std::string exit_record(int exit_code, int runtime_seconds);
/// Makes a record of a file of the run, relative to its `files` folder, written there and named in the run.
std::string file_record(const std::string& path, std::string_view content);

}  // namespace wandb

/// Writes records into a run's folder as W&B's client does without a network: `run-ID.wandb` and the folder `files`.
class WandbSink final : public RecordSink {
 public:
  /// `folder`: `offline-run-TIME-ID`.
  WandbSink(std::string folder, std::string run_id);

  size_t send(std::span<const std::string> records, const std::atomic<bool>& stop) override;

 private:
  std::string message_of(const std::string& record);

  const std::string folder_;
  const std::string run_id_;
  std::optional<WandbFile> file_;
  int64_t rows_ = 0;
};

}  // namespace levin
