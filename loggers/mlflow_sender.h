#pragma once

#include <levin/loggers/background_worker.h>
#include <levin/loggers/mlflow_refused.h>
#include <levin/loggers/mlflow_run.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace levin {

struct MlflowSenderOptions {
  MlflowRunOptions run = {};         ///< its tracking_uri may have credentials, which go no further
  std::string later = {};            ///< what a user does about what stays on disk
  bool spools_must_be_free = false;  ///< throws levin::Error where another process has them
  int stall_seconds = 30;
  size_t memory_bytes = 16 << 20;  ///< bytes that may wait in memory
};

/// Sends records (mlflow_records.h) to one run of an MLflow server, through two BackgroundWorkers: one for values and
/// the run's state, with the spool `unsent` in the run's mlflow folder, and one for artifacts, with `unsent_artifacts`.
/// So a store of artifacts that is slow or broken holds up nothing else. The state of a run says how training ended;
/// its artifacts may come later.
class MlflowSender {
 public:
  explicit MlflowSender(MlflowSenderOptions options);

  void push(std::string record) noexcept;
  /// Finishes both workers at the same time; see BackgroundWorker::finish.
  void finish(std::chrono::milliseconds patience) noexcept;
  /// Number of records that were neither sent nor dropped.
  int64_t waiting() const { return values_->waiting() + artifacts_->waiting(); }
  /// Number of records that the server will never take.
  int64_t refused() const { return refused_->count(); }

 private:
  const std::shared_ptr<MlflowRefused> refused_;
  std::unique_ptr<BackgroundWorker> values_;
  std::unique_ptr<BackgroundWorker> artifacts_;
};

}  // namespace levin
