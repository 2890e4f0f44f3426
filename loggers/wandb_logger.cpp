#include <levin/loggers/wandb_logger.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/image_bytes.h>
#include <levin/core/base/log.h>
#include <levin/core/base/png.h>
#include <levin/loggers/config_leaves.h>
#include <levin/loggers/digest.h>
#include <levin/loggers/json_text.h>
#include <levin/loggers/kept_files.h>
#include <levin/loggers/logger_place.h>
#include <levin/loggers/random_id.h>
#include <levin/loggers/wandb_artifact_sink.h>
#include <levin/loggers/wandb_system.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <thread>

namespace levin {
namespace {

constexpr const char* kWandb = "W&B logger";
constexpr const char* kArtifactWorkerName = "W&B logger, digests of checkpoints";
constexpr const char* kStepMetric = "trainer/global_step";
constexpr std::string_view kFolderStart = "offline-run-";

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// As W&B's client writes doubles: Python's JSON, which has words for what is not finite.
std::string wandb_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

/// Bytes that are no UTF-8 have no place in protobuf's strings.
std::string valid_utf8(const std::string& text) {
  if (std::all_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x80; })) return text;
  return nlohmann::json::parse(json_text(text)).get<std::string>();
}

/// The id in the name of a folder offline-run-TIME-ID. It may have a "-" in it; the time has none.
std::string id_in(const std::string& name) { return name.substr(name.find('-', kFolderStart.size()) + 1); }

/// "20261122_143000"
std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &local);
  return text.data();
}

/// wandb.Histogram: as many equal bins as its default.
std::string histogram_json(std::span<const double> values) {
  constexpr int64_t kBins = 64;
  double low = 0;
  double high = 0;
  bool any = false;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = any ? std::min(low, value) : value;
    high = any ? std::max(high, value) : value;
    any = true;
  }
  if (!any) return "";
  if (low == high) {
    low -= 0.5;
    high += 0.5;
  }
  const double width = high / kBins - low / kBins;
  std::vector<int64_t> counts(kBins);
  std::vector<double> edges;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const auto bin = static_cast<int64_t>((value / kBins - low / kBins) / width * kBins);
    ++counts[static_cast<size_t>(std::clamp<int64_t>(bin, 0, kBins - 1))];
  }
  for (int64_t i = 0; i <= kBins; ++i) edges.push_back(low + width * static_cast<double>(i));
  return nlohmann::json{{"_type", "histogram"}, {"values", counts}, {"bins", edges}}.dump();
}

}  // namespace

void WandbLoggerOptions::describe(Schema<WandbLoggerOptions>& schema) {
  using O = WandbLoggerOptions;
  const auto not_empty = [](const std::string& text) { return !text.empty(); };
  schema.field("save_dir", &O::save_dir, "folder that holds the folder wandb; empty: the run's");
  schema.field("project", &O::project, "the project").require("not empty", not_empty);
  schema.field("entity", &O::entity, "user or team; empty: the user who uploads the run");
  schema.field("name", &O::name, "the run's name; empty: its folder");
  schema.field("group", &O::group, "the group of runs");
  schema.field("tags", &O::tags, "tags of the run");
  schema.field("notes", &O::notes, "a longer description of the run");
  schema.field("id", &O::id, "the run's id; empty: drawn at random")
      .require("letters, digits and - _", [](const std::string& id) {
        return std::all_of(id.begin(), id.end(),
                           [](unsigned char c) { return c < 128 && (std::isalnum(c) != 0 || c == '-' || c == '_'); });
      });
  describe_prefix(schema);
  schema
      .field("log_model", &O::log_model,
             "checkpoints as artifacts; all: each as it is written; true: those left at the end")
      .one_of({"false", "true", "all"});
  schema.field("finish_seconds", &O::finish_seconds, "time that the end waits for checkpoints and a slow disk (s)")
      .at_least(0);
  schema.field("client", &O::client,
               "command of W&B's client, which uploads the run after each call: [wandb], or [python3, -m, wandb]; "
               "empty: no upload");
  schema.field("upload_seconds", &O::upload_seconds, "longest wait for the client at the end (s)")
      .at_least(0)
      .at_most(1e6);
}

WandbLogger::WandbLogger(const Options& options)
    : options_(options), client_(options.client), checkpoints_(options.log_model) {}

WandbLogger::~WandbLogger() = default;

void WandbLogger::start(const RunInfo& run) {
  artifact_worker_.reset();
  worker_.reset();
  summary_.clear();
  try {
    const std::string folder = (options_.save_dir.empty() ? run.directory : options_.save_dir) + "/wandb";
    std::string found = former_folder(folder, run);
    run_ = {.id = !options_.id.empty() ? options_.id : random_id(8),
            .entity = valid_utf8(options_.entity),
            .project = valid_utf8(options_.project),
            .name = valid_utf8(options_.name.empty() ? run.directory : options_.name),
            .group = valid_utf8(options_.group),
            .notes = valid_utf8(options_.notes),
            .start_seconds = seconds_now()};
    for (const auto& tag : options_.tags) run_.tags.push_back(valid_utf8(tag));
    if (!found.empty())
      run_.id = id_in(found);
    else
      found = fmt::format("{}{}-{}", kFolderStart, time_text(), run_.id);
    run_directory_ = run.directory;
    folder_ = folder + "/" + found;
    const bool is_new = !FileSystem::current().exists(folder_);
    worker_ = std::make_unique<BackgroundWorker>(BackgroundWorkerOptions{.name = kWandb},
                                                 std::make_unique<WandbSink>(folder_, run_.id));
    if (options_.log_model != "false")
      artifact_worker_ = std::make_unique<BackgroundWorker>(BackgroundWorkerOptions{.name = kArtifactWorkerName},
                                                            std::make_unique<WandbArtifactSink>(*worker_));
    worker_->push(wandb::run_record(run_));
    if (!is_new) return;
    if (client_.is_given() && !client_.is_found())
      log::warning(fmt::format("{}: there is no client '{}', here or in PATH; what is logged stays in {}", kWandb,
                               options_.client.front(), folder_));
    worker_->push(wandb::step_metric_record(kStepMetric));
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
    const nlohmann::json metadata{{"os", "Linux"},
                                  {"host", host.data()},
                                  {"program", std::filesystem::current_path().string()},
                                  {"writer", "levin"}};
    worker_->push(wandb::file_record("wandb-metadata.json",
                                     metadata.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"));
  } catch (const std::exception& error) {
    log::warning(fmt::format("{}: {}; training goes on without it", kWandb, error.what()));
    artifact_worker_.reset();
    worker_.reset();
  }
}

std::string WandbLogger::former_folder(const std::string& folder, const RunInfo& run) const {
  std::string found;
  for (const auto& name : FileSystem::current().list(folder)) {
    if (!name.starts_with(kFolderStart)) continue;
    // In the run's folder all that is there is of this run; in one of many runs, what has its id or was its own before.
    const bool is_own = run.directory == run_directory_ && name == std::filesystem::path(folder_).filename();
    if (options_.save_dir.empty() || is_own || (!options_.id.empty() && id_in(name) == options_.id)) found = name;
  }
  return found;
}

void WandbLogger::push_row(std::vector<wandb::Item> items, int64_t step) {
  const double now = seconds_now();
  items.push_back({kStepMetric, std::to_string(step)});
  items.push_back({"_timestamp", fmt::format("{:.6f}", now)});
  items.push_back({"_runtime", fmt::format("{:.6f}", now - run_.start_seconds)});
  worker_->push(wandb::history_record(items));
}

void WandbLogger::log_metrics(std::span<const MetricValue> values, int64_t step, int64_t epoch) {
  if (worker_ == nullptr) return;
  std::vector<wandb::Item> items;
  items.reserve(values.size() + 4);
  bool has_epoch = false;
  for (const auto& value : values) {
    items.push_back({valid_utf8(value.name), wandb_number(value.value)});
    has_epoch = has_epoch || value.name == "epoch";
  }
  if (!has_epoch) items.push_back({"epoch", std::to_string(epoch)});
  for (const auto& item : items) summary_.insert_or_assign(item.key, item.json);
  summary_.insert_or_assign(kStepMetric, std::to_string(step));
  push_row(std::move(items), step);
  const auto system =
      wandb::system_items(values, std::max<int64_t>(1, std::thread::hardware_concurrency()), options_.prefix);
  if (!system.empty()) worker_->push(wandb::stats_record(system, seconds_now()));
}

void WandbLogger::log_hyperparameters(const Config& hyperparameters) {
  if (worker_ == nullptr) return;
  std::vector<wandb::Item> items;
  Config file = Config::mapping();
  for (const auto& entry : hyperparameters.entries()) {
    items.push_back({valid_utf8(entry.key), config_json(entry.value)});
    Config value = Config::mapping();
    value.set("value", entry.value);
    file.set(entry.key, std::move(value));
  }
  worker_->push(wandb::config_record(items));
  worker_->push(wandb::file_record("config.yaml", "wandb_version: 1\n\n" + file.to_yaml()));
}

void WandbLogger::log_text(const std::string& name, const std::string& text, int64_t step) {
  if (worker_ != nullptr) push_row({{valid_utf8(name), json_text(text)}}, step);
}

void WandbLogger::log_histogram(const std::string& name, std::span<const double> values, int64_t step) {
  if (worker_ == nullptr) return;
  if (std::string json = histogram_json(values); !json.empty()) push_row({{valid_utf8(name), std::move(json)}}, step);
}

void WandbLogger::log_image(const std::string& name, const at::Tensor& image, int64_t step) {
  if (worker_ == nullptr) return;
  const at::Tensor bytes = image_bytes(image);
  const std::string png = encode_png(bytes);
  const std::string digest = sha256_hex(png);
  const std::string path = fmt::format("media/images/step_{:09}_{}.png", step, digest.substr(0, 20));
  const nlohmann::json json{{"_type", "image-file"}, {"sha256", digest},       {"size", png.size()},     {"path", path},
                            {"format", "png"},       {"width", bytes.size(2)}, {"height", bytes.size(1)}};
  worker_->push(wandb::file_record(path, png));
  push_row({{valid_utf8(name), json.dump()}}, step);
}

void WandbLogger::after_save_checkpoint(const CheckpointEvent& event) {
  if (worker_ != nullptr) log_checkpoints(checkpoints_.after_save(event));
}

void WandbLogger::log_checkpoints(const std::vector<CheckpointEvent>& events) {
  for (const auto& event : events) {
    const std::string name = std::filesystem::path(event.path).filename().string();
    nlohmann::json metadata{{"checkpoint", name}, {"epoch", event.epoch}, {"global_step", event.global_step}};
    if (!event.monitor.empty()) metadata["monitor"] = event.monitor;
    if (event.score && std::isfinite(*event.score)) metadata["score"] = *event.score;
    wandb::Artifact artifact{.name = "model-" + run_.id,
                             .directory = fmt::format("{}/artifacts/{}.{:.6f}", folder_, name, seconds_now()),
                             .aliases = {"latest"},
                             .metadata_json = metadata.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
    if (event.is_best) artifact.aliases.push_back("best");
    try {
      artifact.files = keep_files(event.path, artifact.directory);
      artifact_worker_->push(wandb::artifact_request(run_, artifact));
    } catch (const std::exception& error) {
      log::warning(fmt::format("{}: {}; the checkpoint {} is not logged", kWandb, error.what(), event.path));
    }
  }
}

void WandbLogger::finish(TrainerStatus status) {
  if (worker_ == nullptr) return;
  using std::chrono::milliseconds;
  constexpr double kLongest = 1e9;
  const milliseconds patience(static_cast<int64_t>(std::min(options_.finish_seconds, kLongest) * 1000));
  const auto begin = std::chrono::steady_clock::now();
  const double runtime = seconds_now() - run_.start_seconds;
  log_checkpoints(checkpoints_.at_end());
  if (artifact_worker_ != nullptr) artifact_worker_->finish(patience);
  artifact_worker_.reset();
  // Nothing follows what says how the run ended.
  std::vector<wandb::Item> items;
  for (const auto& [key, json] : summary_) items.push_back({key, json});
  items.push_back({"_runtime", fmt::format("{:.6f}", runtime)});
  worker_->push(wandb::summary_record(items));
  // As a shell sees programs end: 130 is Ctrl-C.
  const int exit_code = status == TrainerStatus::kFinished ? 0 : status == TrainerStatus::kInterrupted ? 130 : 1;
  worker_->push(wandb::exit_record(exit_code, static_cast<int>(runtime)));
  const auto taken = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
  worker_->finish(patience - taken);
  worker_.reset();
  if (client_.is_given() && client_.is_found()) upload();
}

void WandbLogger::upload() const {
  const std::chrono::milliseconds longest(static_cast<int64_t>(options_.upload_seconds * 1000));
  log::info(fmt::format("{}: uploading {}, for {:g} s at most", kWandb, folder_, options_.upload_seconds));
  try {
    client_.upload(folder_, longest);
  } catch (const std::exception& error) {
    log::warning(fmt::format("{}: {}", kWandb, error.what()));
  }
}

}  // namespace levin
