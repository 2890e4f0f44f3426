#include <levin/loggers/mlflow_logger.h>

#include <levin/core/base/error.h>
#include <levin/core/base/http_client.h>
#include <levin/core/base/image_bytes.h>
#include <levin/core/base/log.h>
#include <levin/core/base/png.h>
#include <levin/loggers/config_leaves.h>
#include <levin/loggers/kept_files.h>
#include <levin/loggers/logger_place.h>
#include <levin/loggers/mlflow_client.h>
#include <levin/loggers/mlflow_names.h>
#include <levin/loggers/mlflow_records.h>
#include <levin/loggers/mlflow_run.h>
#include <levin/loggers/mlflow_sender.h>

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
  constexpr double kLongest = 1e9;
  return std::chrono::milliseconds(static_cast<int64_t>(std::min(seconds, kLongest) * 1000));
}

std::string folder_in(const std::string& run_folder) { return run_folder + "/mlflow"; }

std::string how_to_send_later(const std::string& run_folder) {
  return fmt::format("`levin-send-logs {}` sends them", run_folder);
}

std::string environment_uri() {
  const char* variable = std::getenv("MLFLOW_TRACKING_URI");
  return variable != nullptr ? variable : "";
}

/// The run of MLflow that wrote a checkpoint: its run.json is in a folder above the checkpoint.
std::optional<MlflowRunOptions> run_that_wrote(const std::string& checkpoint) {
  if (checkpoint.empty()) return std::nullopt;
  std::error_code ignored;
  auto folder = std::filesystem::absolute(checkpoint, ignored);
  for (int levels = 0; levels < 3 && folder.has_relative_path(); ++levels) {
    folder = folder.parent_path();
    if (auto run = MlflowRun::kept_in(folder_in(folder))) return run;
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
               "address of the MLflow server, such as http://127.0.0.1:5000, without name and password; empty: "
               "MLFLOW_TRACKING_URI");
  schema.field("experiment_name", &O::experiment_name, "experiment, created if missing")
      .require("not empty", [](const std::string& name) { return !name.empty(); });
  schema.field("run_name", &O::run_name, "the run's name; empty: its folder");
  schema.field("tags", &O::tags, "tags of the run");
  schema.field("run_id", &O::run_id, "MLflow run to continue");
  schema.field("resume", &O::resume, "continue the MLflow run that wrote the checkpoint when a fit resumes");
  describe_prefix(schema);
  schema
      .field("log_model", &O::log_model,
             "checkpoints as artifacts; all: each as it is written; true: those left at the end")
      .one_of({"false", "true", "all"});
  schema.field("finish_seconds", &O::finish_seconds, "longest wait for a slow server at the end (s)").at_least(0);
  schema.field("stall_seconds", &O::stall_seconds, "longest wait for an answer of the server (s)").at_least(1);
  schema.field("memory_mib", &O::memory_mib, "memory for unsent records (MiB); more is kept on disk").at_least(1);
}

MlflowLogger::MlflowLogger(const Options& options) : options_(options), checkpoints_(options.log_model) {
  const UrlWithoutUser server = without_user(options.tracking_uri);
  if (server.url != options.tracking_uri)
    throw ConfigError(
        fmt::format("tracking_uri of the MLflow logger has a user's name or password in it, and options are written to "
                    "files of the run; got one for {}; hint: set MLFLOW_TRACKING_USERNAME and "
                    "MLFLOW_TRACKING_PASSWORD, or give the whole address as MLFLOW_TRACKING_URI",
                    server.url));
}

MlflowLogger::~MlflowLogger() = default;

void MlflowLogger::start(const RunInfo& run) {
  sender_.reset();
  names_.clear();
  directory_ = run.directory;
  try {
    MlflowSenderOptions sender{
        .run = {.folder = folder_in(directory_),
                .tracking_uri = options_.tracking_uri.empty() ? environment_uri() : options_.tracking_uri,
                .experiment_name = options_.experiment_name,
                .run_name = options_.run_name.empty() ? directory_ : options_.run_name,
                .tags = options_.tags,
                .run_id = options_.run_id,
                .must_exist = !options_.run_id.empty(),
                .start_milliseconds = milliseconds_now()},
        .later = how_to_send_later(directory_),
        .stall_seconds = static_cast<int>(options_.stall_seconds),
        .memory_bytes = static_cast<size_t>(options_.memory_mib) << 20};
    if (options_.run_id.empty() && options_.resume && !MlflowRun::kept_in(sender.run.folder)) {
      if (auto former = run_that_wrote(run.resumed_from)) {
        sender.run.run_id = std::move(former->run_id);
        sender.run.key = std::move(former->key);
      }
    }
    sender_ = std::make_unique<MlflowSender>(std::move(sender));
    sender_->push(mlflow::status_record("RUNNING", 0));
  } catch (const std::exception& error) {
    log::warning(fmt::format("{}: {}; training goes on without it", kName, error.what()));
  }
}

const std::string& MlflowLogger::name_of(const std::string& metric) {
  const auto [item, is_new] = names_.try_emplace(metric);
  if (is_new) {
    item->second = mlflow_name(metric);
    if (item->second != metric) sender_->push(mlflow::tag_record(mlflow_name("name." + item->second), metric));
  }
  return item->second;
}

void MlflowLogger::log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) {
  if (sender_ == nullptr) return;
  std::vector<mlflow::Metric> metrics;
  metrics.reserve(values.size() + 1);
  bool has_epoch = false;
  for (const auto& value : values) {
    metrics.push_back({name_of(value.name), value.value});
    has_epoch = has_epoch || value.name == "epoch";
  }
  if (!has_epoch) metrics.push_back({"epoch", static_cast<double>(epoch)});
  for (auto& record : mlflow::metric_records(metrics, milliseconds_now(), step)) sender_->push(std::move(record));
}

void MlflowLogger::log_hyperparameters(const Config& hyperparameters) {
  if (sender_ == nullptr) return;
  for_each_leaf(hyperparameters, [&](const std::string& path, const Config& value) {
    const std::string name = mlflow_name(path);
    sender_->push(mlflow::parameter_record(name, leaf_text(value)));
    if (name != path) sender_->push(mlflow::tag_record(mlflow_name("name." + name), path));
  });
  sender_->push(mlflow::bytes_record("hparams.yaml", hyperparameters.to_yaml()));
  if (const Config* config = hyperparameters.find("config"); config != nullptr && config->is_mapping())
    sender_->push(mlflow::bytes_record("config.yaml", config->to_yaml()));
}

void MlflowLogger::log_text(const std::string& name, const std::string& text, int64_t step) {
  if (sender_ == nullptr) return;
  sender_->push(mlflow::bytes_record(fmt::format("text/{}/step_{:09}.txt", mlflow_name(name), step), text));
}

void MlflowLogger::log_image(const std::string& name, const at::Tensor& image, int64_t step) {
  if (sender_ == nullptr) return;
  sender_->push(mlflow::bytes_record(fmt::format("images/{}/step_{:09}.png", mlflow_name(name), step),
                                     encode_png(image_bytes(image))));
}

void MlflowLogger::after_save_checkpoint(const CheckpointEvent& event) {
  if (sender_ != nullptr) log_checkpoints(checkpoints_.after_save(event));
}

void MlflowLogger::log_checkpoints(const std::vector<CheckpointEvent>& events) {
  for (const auto& event : events) {
    const std::filesystem::path name = std::filesystem::path(event.path).filename();
    // Links, since the trainer may remove the checkpoint before it is sent.
    const std::string kept = fmt::format("checkpoints/{}.{}", name.string(), milliseconds_now());
    try {
      for (const auto& file : keep_files(event.path, folder_in(directory_) + "/" + kept))
        sender_->push(mlflow::file_record(fmt::format("checkpoints/{}", (name / file).string()),
                                          fmt::format("{}/{}", kept, file)));
    } catch (const std::exception& error) {
      log::warning(fmt::format("{}: {}; the checkpoint {} is not logged", kName, error.what(), event.path));
    }
  }
}

void MlflowLogger::finish(TrainerStatus status) {
  if (sender_ == nullptr) return;
  log_checkpoints(checkpoints_.at_end());
  sender_->push(mlflow::status_record(mlflow_status(status), milliseconds_now()));
  sender_->finish(milliseconds(options_.finish_seconds));
  sender_.reset();
}

MlflowLogger::SendResult MlflowLogger::send_unsent(const std::string& run_folder, const std::string& tracking_uri) {
  const std::string folder = folder_in(run_folder);
  std::optional<MlflowRunOptions> run = MlflowRun::kept_in(folder);
  if (!run)
    throw Error(
        "mlflow",
        fmt::format("{}/run.json is not there, or damaged: no run with the MLflow logger wrote into this folder",
                    folder));
  if (!tracking_uri.empty()) {
    // A run that the user chose is on the run's own server; on another there is to be one.
    run->tracking_uri = tracking_uri;
    run->must_exist = false;
  } else if (run->tracking_uri.empty() || mlflow_access(environment_uri(), 0).address == run->tracking_uri) {
    run->tracking_uri = environment_uri();  // perhaps with credentials
  }
  MlflowSender sender({.run = std::move(*run), .later = how_to_send_later(run_folder), .spools_must_be_free = true});
  sender.finish(std::chrono::hours(24 * 365));
  return {.left = sender.waiting(), .refused = sender.refused()};
}

}  // namespace levin
