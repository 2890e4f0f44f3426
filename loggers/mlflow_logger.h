#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/interfaces/logger.h>
#include <levin/loggers/checkpoint_picker.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace levin {

class MlflowSender;

/// Options of MlflowLogger, explained in describe().
struct MlflowLoggerOptions {
  std::string tracking_uri = {};
  std::string experiment_name = "levin";
  std::string run_name = {};
  std::map<std::string, std::string> tags = {};
  std::string run_id = {};  ///< empty: see `resume`
  bool resume = true;
  std::string prefix = {};
  std::string log_model = "false";
  double finish_seconds = 30;
  double stall_seconds = 30;
  int64_t memory_mib = 16;

  static void describe(Schema<MlflowLoggerOptions>& schema);
};

/// Logs to an MLflow tracking server: metrics, hyper-parameters and configuration, texts and images as artifacts, the
/// state of the run, and checkpoints if wished. Histograms are left out: MLflow has none.
///
/// Everything goes through an MlflowSender: a server that is slow or away costs training nothing, and what could not be
/// sent is kept in `mlflow/unsent` and `mlflow/unsent_artifacts` in the run's folder, whence it is sent when the server
/// is back, or later by `levin-send-logs RUN_FOLDER`. Credentials come from MLFLOW_TRACKING_TOKEN, from
/// MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or from within MLFLOW_TRACKING_URI, and are written nowhere.
/// Names are mapped by mlflow_name; the tag `name.MAPPED` then says what a name was. The epoch is a metric.
class MlflowLogger final : public Logger {
 public:
  using Options = MlflowLoggerOptions;

  /// Throws levin::ConfigError when the option tracking_uri has credentials: options are written into files.
  explicit MlflowLogger(const Options& options = {});
  ~MlflowLogger() override;

  std::string_view prefix() const override { return options_.prefix; }
  void start(const RunInfo& run) override;
  void log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) override;
  void log_hyperparameters(const Config& hyperparameters) override;
  void log_text(const std::string& name, const std::string& text, int64_t step) override;
  void log_image(const std::string& name, const at::Tensor& image, int64_t step) override;
  void after_save_checkpoint(const CheckpointEvent& event) override;
  void finish(TrainerStatus status) override;

  struct SendResult {
    int64_t left = 0;     ///< records that are still in the folder, to be sent
    int64_t refused = 0;  ///< records that the server will never take; mlflow/refused.txt says which and why
  };
  /// Sends what earlier runs left in `run_folder`, waiting as long as the server takes it. `tracking_uri`: of another
  /// server than the run was given; may have credentials. Throws levin::Error when the folder has no such run, and when
  /// another process trains or sends there.
  static SendResult send_unsent(const std::string& run_folder, const std::string& tracking_uri = "");

 private:
  const std::string& name_of(const std::string& metric);
  void log_checkpoints(const std::vector<CheckpointEvent>& events);

  const Options options_;
  std::string directory_;  ///< of the run; empty: not started
  std::unique_ptr<MlflowSender> sender_;
  std::unordered_map<std::string, std::string> names_;  ///< of metrics, as MLflow takes them
  CheckpointPicker checkpoints_;
};

}  // namespace levin
