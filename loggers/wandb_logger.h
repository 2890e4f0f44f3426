#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/logger.h>
#include <levin/loggers/background_worker.h>
#include <levin/loggers/checkpoint_picker.h>
#include <levin/loggers/wandb_client.h>
#include <levin/loggers/wandb_sink.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Options of WandbLogger, explained in describe().
struct WandbLoggerOptions {
  std::string save_dir = {};
  std::string project = "levin";
  std::string entity = {};
  std::string name = {};
  std::string group = {};
  std::vector<std::string> tags = {};
  std::string notes = {};
  std::string id = {};
  std::string prefix = {};
  std::string log_model = "false";
  double finish_seconds = 30;
  std::vector<std::string> client = {};
  double upload_seconds = 600;

  static void describe(Schema<WandbLoggerOptions>& schema);
};

/// Writes a run in the format of Weights & Biases without a network, into `wandb/offline-run-TIME-ID` in the run's
/// folder or in `save_dir`; `wandb sync FOLDER` uploads it, at the end of each call by the `client`, if one is named.
/// Metrics (drawn over `trainer/global_step`, as PyTorch Lightning's are), device statistics, hyper-parameters and
/// configuration, texts, histograms, images, checkpoints as artifacts if wished, and how the run ended. What is written
/// is readable at every moment, also after the process was killed. What follows a fit of the same trainer, but a
/// further fit, goes on in the same run.
///
/// A BackgroundWorker does the writing: a slow disk costs training nothing; while a disk is full, 16 MiB wait in
/// memory. Another one reads checkpoints for their digests.
class WandbLogger final : public Logger {
 public:
  using Options = WandbLoggerOptions;

  explicit WandbLogger(const Options& options = {});
  ~WandbLogger() override;

  std::string_view prefix() const override { return options_.prefix; }
  void start(const RunInfo& run) override;
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) override;
  void log_hyperparameters(const Config& hyperparameters) override;
  void log_text(const std::string& name, const std::string& text, int64_t step) override;
  void log_histogram(const std::string& name, std::span<const double> values, int64_t step) override;
  void log_image(const std::string& name, const at::Tensor& image, int64_t step) override;
  void after_save_checkpoint(const CheckpointEvent& event) override;
  void finish(TrainerStatus status) override;

 private:
  /// Name of the folder of W&B's in `folder` that a call goes on in; empty: none.
  std::string former_folder(const std::string& folder, const RunInfo& run) const;
  /// A row with the step, the time and these.
  void push_row(std::vector<wandb::Item> items, int64_t step);
  void log_checkpoints(const std::vector<CheckpointEvent>& events);
  void upload() const;

  const Options options_;
  const WandbClient client_;
  wandb::Run run_;
  std::string run_directory_;
  std::string folder_;  ///< offline-run-TIME-ID
  std::unique_ptr<BackgroundWorker> worker_;
  std::unique_ptr<BackgroundWorker> artifact_worker_;  ///< writes through worker_; with `log_model` only
  std::map<std::string, std::string> summary_;         ///< the last value of each metric, as JSON
  CheckpointPicker checkpoints_;
};

}  // namespace levin
