#pragma once

#include <levin/loggers/background_worker.h>
#include <levin/loggers/mlflow_client.h>
#include <levin/loggers/mlflow_refused.h>
#include <levin/loggers/mlflow_run.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin {

/// Sends metrics, parameters, tags and the state of a run to an MLflow server.
///
/// A request carries as many records as it may. Whatever is no answer, or an answer that is not about the record itself
/// (401, 404, 429, 5xx), is an error to try again. A value that the server refuses (400) is set aside as MlflowRefused
/// says; the rest goes on.
///
/// A record that arrives twice changes nothing: a metric of the same name, time, step and value is one point to MLflow.
class MlflowValueSink final : public RecordSink {
 public:
  MlflowValueSink(const MlflowAccess& access, std::shared_ptr<MlflowRun> run, std::shared_ptr<MlflowRefused> refused);

  size_t send(std::span<const std::string> records, const std::atomic<bool>& stop) override;

 private:
  /// Contents of one request. The texts are JSON objects.
  struct Batch {
    std::vector<std::string_view> metrics;
    std::vector<std::string_view> parameters;
    std::vector<std::string_view> tags;
    size_t bytes = 0;

    size_t size() const { return metrics.size() + parameters.size() + tags.size(); }
    /// Adds a record; false, and nothing is added, when a request cannot carry it as well.
    bool add(std::string_view record);
    /// Halves of this.
    std::pair<Batch, Batch> split() const;
  };

  size_t send_batch(std::span<const std::string> records);
  void log_batch(const Batch& batch);
  void refused_one(const Batch& batch, const std::string& reason);
  void update_status(std::string_view body);

  MlflowClient client_;
  const std::shared_ptr<MlflowRun> run_;
  const std::shared_ptr<MlflowRefused> refused_;
  std::string run_id_;
};

}  // namespace levin
