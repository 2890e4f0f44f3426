#include <levin/loggers/mlflow_logger.h>

#include <levin/core/base/error.h>
#include <levin/core/base/image_bytes.h>
#include <levin/core/base/log.h>
#include <levin/loggers/config_leaves.h>
#include <levin/loggers/kept_files.h>
#include <levin/loggers/mlflow_names.h>
#include <levin/loggers/mlflow_sink.h>
#include <levin/loggers/png.h>

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>

namespace levin {
namespace {

constexpr const char* kName = "MLflow logger";

int64_t milliseconds_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

BackgroundWorkerOptions worker_options(const std::string& run_folder) {
  return {.name = kName,
          .spool = run_folder + "/mlflow/unsent",
          .later = fmt::format("`levin-send-logs {}` sends them", run_folder)};
}

/// `uri`, or MLFLOW_TRACKING_URI where it is empty.
std::string or_of_environment(const std::string& uri) {
  const char* variable = std::getenv("MLFLOW_TRACKING_URI");
  return uri.empty() && variable != nullptr ? variable : uri;
}

/// The run of MLflow that wrote a checkpoint: its run.json is in a folder above the checkpoint.
std::optional<std::string> run_that_wrote(const std::string& checkpoint) {
  if (checkpoint.empty()) return std::nullopt;
  std::error_code ignored;
  auto folder = std::filesystem::absolute(checkpoint, ignored);
  for (int levels = 0; levels < 3 && folder.has_relative_path(); ++levels) {
    folder = folder.parent_path();
    if (auto id = MlflowSink::run_id_of(folder / "mlflow")) return id;
  }
  return std::nullopt;
}

const char* mlflow_status(TrainerStatus status) {
  switch (status) {
    case TrainerStatus::kFinished:
      return "FINISHED";
    case TrainerStatus::kInterrupted:
      return "KILLED";
    default:
      return "FAILED";
  }
}

}  // namespace

void MlflowLoggerOptions::describe(Schema<MlflowLoggerOptions>& schema) {
  using O = MlflowLoggerOptions;
  schema.field("tracking_uri", &O::tracking_uri,
               "address of the MLflow server, such as http://127.0.0.1:5000; empty: MLFLOW_TRACKING_URI");
  schema.field("experiment_name", &O::experiment_name, "the experiment, made when it is not there")
      .require("not empty", [](const std::string& name) { return !name.empty(); });
  schema.field("run_name", &O::run_name, "the run's name; empty: its folder");
  schema.field("tags", &O::tags, "tags of the run");
  schema.field("run_id", &O::run_id, "an MLflow run to go on with");
  schema.field("resume", &O::resume, "a fit from a checkpoint goes on in the MLflow run that wrote the checkpoint");
  schema
      .field("log_model", &O::log_model,
             "checkpoints as artifacts: all as they are written, or, with true, those that are left at the end")
      .one_of({"false", "true", "all"});
  schema.field("finish_seconds", &O::finish_seconds, "seconds that the end waits for a slow server").at_least(0);
  schema.field("stall_seconds", &O::stall_seconds, "seconds that the server may leave a request without an answer")
      .at_least(1);
  schema.field("memory_mib", &O::memory_mib, "MiB that may wait in memory; more waits on disk").at_least(1);
}

MlflowLogger::MlflowLogger(const Options& options) : options_(options), checkpoints_(options.log_model) {}

MlflowLogger::~MlflowLogger() = default;

void MlflowLogger::start(const RunInfo& run) {
  worker_.reset();
  names_.clear();
  directory_ = run.directory;
  try {
    MlflowSinkOptions sink{.folder = directory_ + "/mlflow",
                           .tracking_uri = or_of_environment(options_.tracking_uri),
                           .experiment_name = options_.experiment_name,
                           .run_name = options_.run_name.empty() ? directory_ : options_.run_name,
                           .tags = options_.tags,
                           .run_id = options_.run_id,
                           .start_milliseconds = milliseconds_now(),
                           .stall_seconds = static_cast<int>(options_.stall_seconds)};
    if (sink.run_id.empty() && options_.resume && !MlflowSink::run_id_of(sink.folder))
      sink.run_id = run_that_wrote(run.resumed_from).value_or("");
    BackgroundWorkerOptions worker = worker_options(directory_);
    worker.memory_bytes = static_cast<size_t>(options_.memory_mib) << 20;
    worker_ = std::make_unique<BackgroundWorker>(std::move(worker), std::make_unique<MlflowSink>(std::move(sink)));
    worker_->push(mlflow::status_record("RUNNING", 0));
  } catch (const std::exception& error) {
    log::warning(fmt::format("{}: {}; training goes on without it", kName, error.what()));
  }
}

const std::string& MlflowLogger::name_of(const std::string& metric) {
  const auto [item, is_new] = names_.try_emplace(metric);
  if (is_new) {
    item->second = mlflow_name(metric);
    if (item->second != metric) worker_->push(mlflow::tag_record(mlflow_name("name." + item->second), metric));
  }
  return item->second;
}

void MlflowLogger::log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) {
  if (worker_ == nullptr) return;
  std::vector<mlflow::Metric> metrics;
  metrics.reserve(values.size() + 1);
  bool has_epoch = false;
  for (const auto& value : values) {
    metrics.push_back({name_of(value.name), value.value});
    has_epoch = has_epoch || value.name == "epoch";
  }
  if (!has_epoch) metrics.push_back({"epoch", static_cast<double>(epoch)});
  for (auto& record : mlflow::metric_records(metrics, milliseconds_now(), step)) worker_->push(std::move(record));
}

void MlflowLogger::log_hyperparameters(const Config& hyperparameters) {
  if (worker_ == nullptr) return;
  for_each_leaf(hyperparameters, [&](const std::string& path, const Config& value) {
    const std::string name = mlflow_name(path);
    worker_->push(mlflow::parameter_record(name, leaf_text(value)));
    if (name != path) worker_->push(mlflow::tag_record(mlflow_name("name." + name), path));
  });
  worker_->push(mlflow::bytes_record("hparams.yaml", hyperparameters.to_yaml()));
  if (const Config* config = hyperparameters.find("config"); config != nullptr && config->is_mapping())
    worker_->push(mlflow::bytes_record("config.yaml", config->to_yaml()));
}

void MlflowLogger::log_text(const std::string& name, const std::string& text, int64_t step) {
  if (worker_ == nullptr) return;
  worker_->push(mlflow::bytes_record(fmt::format("text/{}/step_{:09}.txt", mlflow_name(name), step), text));
}

void MlflowLogger::log_image(const std::string& name, const at::Tensor& image, int64_t step) {
  if (worker_ == nullptr) return;
  worker_->push(mlflow::bytes_record(fmt::format("images/{}/step_{:09}.png", mlflow_name(name), step),
                                     encode_png(image_bytes(image))));
}

void MlflowLogger::after_save_checkpoint(const CheckpointEvent& event) {
  if (worker_ != nullptr) log_checkpoints(checkpoints_.after_save(event));
}

void MlflowLogger::log_checkpoints(const std::vector<CheckpointEvent>& events) {
  for (const auto& event : events) {
    const std::filesystem::path name = std::filesystem::path(event.path).filename();
    // Links, since the trainer may remove the checkpoint before it is sent.
    const std::string kept = fmt::format("{}/mlflow/checkpoints/{}.{}", directory_, name.string(), milliseconds_now());
    try {
      for (const auto& file : keep_files(event.path, kept))
        worker_->push(mlflow::file_record("checkpoints/" + (name / file).string(), kept + "/" + file, /*remove=*/true));
    } catch (const std::exception& error) {
      log::warning(fmt::format("{}: {}; the checkpoint {} is not logged", kName, error.what(), event.path));
    }
  }
}

void MlflowLogger::finish(TrainerStatus status) {
  if (worker_ == nullptr) return;
  log_checkpoints(checkpoints_.at_end());
  worker_->push(mlflow::status_record(mlflow_status(status), milliseconds_now()));
  worker_->finish(milliseconds(options_.finish_seconds));
  worker_.reset();
}

int64_t MlflowLogger::send_unsent(const std::string& run_folder, const std::string& tracking_uri) {
  MlflowSinkOptions sink = MlflowSink::options_of(run_folder + "/mlflow");
  sink.tracking_uri = tracking_uri.empty() ? or_of_environment(sink.tracking_uri) : tracking_uri;
  BackgroundWorker worker(worker_options(run_folder), std::make_unique<MlflowSink>(std::move(sink)));
  worker.finish(std::chrono::hours(24 * 365));
  return worker.waiting();
}

}  // namespace levin
