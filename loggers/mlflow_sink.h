#pragma once

#include <levin/loggers/background_worker.h>
#include <levin/loggers/http_client.h>

#include <nlohmann/json_fwd.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// What is told to an MLflow server, as records for a BackgroundWorker.
namespace mlflow {

/// A value with the name under which MLflow keeps it.
struct Metric {
  std::string_view key;
  double value = 0;
};

/// `metrics` at one moment; several records where there are more than a request may carry.
std::vector<std::string> metric_records(std::span<const Metric> metrics, int64_t milliseconds, int64_t step);
/// Key and value, cut to MLflow's limits.
std::string parameter_record(std::string_view key, std::string_view value);
std::string tag_record(std::string_view key, std::string_view value);
/// `status`: RUNNING, FINISHED, FAILED or KILLED; `end_milliseconds`: 0 while it runs.
std::string status_record(std::string_view status, int64_t end_milliseconds);
/// A file that is read when the record is sent, and removed then when `remove`.
std::string file_record(const std::string& artifact_path, const std::string& file, bool remove);
std::string bytes_record(const std::string& artifact_path, std::string_view bytes);

}  // namespace mlflow

struct MlflowSinkOptions {
  std::string folder;  ///< where run.json says which run this is, and refused.txt what the server will never take
  std::string tracking_uri;
  std::string experiment_name;
  std::string run_name;
  std::map<std::string, std::string> tags;
  std::string run_id;  ///< a run to go on with; empty: the one of run.json, else a new one
  int64_t start_milliseconds = 0;
  int stall_seconds = 30;
};

/// Sends records to an MLflow server over its REST API 2.0: experiments/get-by-name and create, runs/create, get,
/// update and log-batch, and the proxied artifacts of mlflow-artifacts. The run is made with the first record.
///
/// What one request may carry (1000 metrics, 100 parameters, 100 tags) is put together from as many records as there
/// are. Whatever is no answer, or an answer that is not about the record itself (401, 404, 429, 5xx), is an error to
/// try again. A value that the server refuses (400) is written to refused.txt and said once; the rest goes on.
///
/// A record that arrives twice changes nothing: a metric of the same name, time, step and value is one point to MLflow.
class MlflowSink final : public RecordSink {
 public:
  explicit MlflowSink(MlflowSinkOptions options);

  size_t send(std::span<const std::string> records, const std::atomic<bool>& stop) override;

  /// The run of `folder`/run.json, once there is one.
  static std::optional<std::string> run_id_of(const std::string& folder);
  /// The options that run.json in `folder` keeps, to send from another process. Throws levin::Error when there is none.
  static MlflowSinkOptions options_of(const std::string& folder);

 private:
  /// What one request carries. The texts are JSON objects.
  struct Batch {
    std::vector<std::string_view> metrics;
    std::vector<std::string_view> parameters;
    std::vector<std::string_view> tags;
    size_t size() const { return metrics.size() + parameters.size() + tags.size(); }
    /// Halves of this.
    std::pair<Batch, Batch> split() const;
  };

  HttpResponse request(const std::string& method, const std::string& path, const std::string& body);
  nlohmann::json call(const std::string& method, const std::string& path, const nlohmann::json& body);
  void ensure_run();
  std::string experiment_id();
  void create_run();
  void find_run();
  void save();
  void write_state() const;
  size_t send_batch(std::span<const std::string> records);
  void log_batch(const Batch& batch);
  void refused_one(const Batch& batch, const std::string& reason);
  void update_status(std::string_view body);
  void upload(const std::string& artifact_path, HttpRequest request);
  void set_aside(std::string_view what, const std::string& reason);

  const MlflowSinkOptions options_;
  HttpClient client_;
  const std::atomic<bool>* stop_ = nullptr;  ///< of the call in progress
  std::string key_;         ///< marks the run as ours before its id is known, so that it is not made twice
  bool may_exist_ = false;  ///< an earlier try to make the run got no answer
  std::string run_id_;
  std::string artifact_uri_;  ///< empty: not asked yet
  bool warned_of_refusal_ = false;
  bool warned_of_state_ = false;
};

}  // namespace levin
