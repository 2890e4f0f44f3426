#include <levin/loggers/mlflow_sink.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/loggers/json_text.h>
#include <levin/loggers/mlflow_names.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

namespace levin {
namespace {

using Json = nlohmann::json;

constexpr const char* kApi = "/api/2.0/mlflow/";
constexpr const char* kArtifactApi = "/api/2.0/mlflow-artifacts/artifacts/";
constexpr const char* kKeyTag = "levin.key";

// What a request may carry (mlflow/utils/validation.py).
constexpr size_t kMostMetrics = 1000;
constexpr size_t kMostParameters = 100;
constexpr size_t kMostTags = 100;
constexpr size_t kLongestKey = 250;
constexpr size_t kLongestParameter = 6000;
constexpr size_t kLongestTag = 5000;
/// What servers of every age take as a parameter.
constexpr size_t kShortParameter = 250;

// What a record is, in its first byte.
constexpr char kMetrics = 'M', kParameter = 'P', kTag = 'T', kStatus = 'S', kFile = 'F', kBytes = 'B';

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// As MLflow reads its variables.
bool says_yes(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text == "true" || text == "1";
}

HttpOptions http_options(int stall_seconds) {
  return {.user_name = environment("MLFLOW_TRACKING_USERNAME"),
          .password = environment("MLFLOW_TRACKING_PASSWORD"),
          .token = environment("MLFLOW_TRACKING_TOKEN"),
          .certificate_file = environment("MLFLOW_TRACKING_SERVER_CERT_PATH"),
          .verify_certificates = !says_yes(environment("MLFLOW_TRACKING_INSECURE_TLS")),
          .stall_seconds = stall_seconds};
}

/// As MLflow's JSON has doubles: the shortest digits that give the same number, and words in quotation marks.
std::string json_number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return fmt::format("{}", value);
}

/// What a record holds; an empty object when the disk it came from has damaged it.
Json parsed(std::string_view body) {
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

/// The text of an answer, short enough for a message.
std::string shortened(const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::string text = body;
  if (json.is_object() && json.contains("message") && json["message"].is_string()) text = json["message"];
  for (char& c : text)
    if (c == '\n') c = ' ';
  return mlflow_text(text, 300);
}

std::string error_code(const HttpResponse& response) {
  const Json json = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json.value("error_code", "") : "";
}

/// Whether the answer is about what was sent, so that sending it again is of no use.
bool refuses(const HttpResponse& response) {
  return response.status == 400 || response.status == 413 || response.status == 422;
}

std::string joined(const std::vector<std::string_view>& parts) {
  std::string text;
  for (const auto& part : parts) {
    if (!text.empty()) text += ',';
    text += part;
  }
  return text;
}

std::string random_key() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

std::string pair_record(char kind, std::string_view key, std::string_view value, size_t longest) {
  return fmt::format("{}{{\"key\":{},\"value\":{}}}", kind, json_text(mlflow_text(key, kLongestKey)),
                     json_text(mlflow_text(value, longest)));
}

/// Each part of a path, escaped.
std::string escaped_path(std::string_view path) {
  std::string result;
  for (const auto& part : std::filesystem::path(path)) {
    if (part == "/") continue;
    if (!result.empty()) result += '/';
    result += url_escaped(part.string());
  }
  return result;
}

}  // namespace

// ---- Records.

std::vector<std::string> mlflow::metric_records(std::span<const Metric> metrics, int64_t milliseconds, int64_t step) {
  std::vector<std::string> records;
  for (size_t i = 0; i < metrics.size(); ++i) {
    if (i % kMostMetrics == 0) records.emplace_back(1, kMetrics);
    if (records.back().size() > 1) records.back() += '\n';
    fmt::format_to(std::back_inserter(records.back()), R"({{"key":{},"value":{},"timestamp":{},"step":{}}})",
                   json_text(metrics[i].key), json_number(metrics[i].value), milliseconds, step);
  }
  return records;
}

std::string mlflow::parameter_record(std::string_view key, std::string_view value) {
  return pair_record(kParameter, key, value, kLongestParameter);
}

std::string mlflow::tag_record(std::string_view key, std::string_view value) {
  return pair_record(kTag, key, value, kLongestTag);
}

std::string mlflow::status_record(std::string_view status, int64_t end_milliseconds) {
  Json body{{"status", status}};
  if (end_milliseconds > 0) body["end_time"] = end_milliseconds;
  return kStatus + body.dump();
}

std::string mlflow::file_record(const std::string& artifact_path, const std::string& file, bool remove) {
  return kFile + Json{{"path", artifact_path}, {"file", file}, {"remove", remove}}.dump(-1, ' ', false,
                                                                                        Json::error_handler_t::replace);
}

std::string mlflow::bytes_record(const std::string& artifact_path, std::string_view bytes) {
  return fmt::format("{}{}\n{}", kBytes, artifact_path, bytes);
}

// ---- The sink.

MlflowSink::MlflowSink(MlflowSinkOptions options)
    : options_(std::move(options)), client_(http_options(options_.stall_seconds)), run_id_(options_.run_id) {}

size_t MlflowSink::send(std::span<const std::string> records, const std::atomic<bool>& stop) {
  stop_ = &stop;
  ensure_run();
  const std::string& first = records.front();
  const std::string_view body = std::string_view(first).substr(1);
  switch (first.front()) {
    case kStatus:
      update_status(body);
      return 1;
    case kFile: {
      const Json file = parsed(body);
      const std::string path = file.value("file", "");
      if (!std::filesystem::exists(path)) {
        set_aside(body, "the file is no longer there");
        return 1;
      }
      upload(file.value("path", ""), {.file = path});
      std::error_code ignored;
      if (file.value("remove", false)) std::filesystem::remove(path, ignored);
      return 1;
    }
    case kBytes: {
      const size_t end = body.find('\n');
      upload(std::string(body.substr(0, end)), {.body = std::string(body.substr(end + 1))});
      return 1;
    }
    default:
      return send_batch(records);
  }
}

size_t MlflowSink::send_batch(std::span<const std::string> records) {
  Batch batch;
  size_t taken = 0;
  for (; taken < records.size(); ++taken) {
    const std::string& record = records[taken];
    std::string_view body = std::string_view(record).substr(1);
    if (record.front() == kParameter) {
      if (batch.parameters.size() == kMostParameters) break;
      batch.parameters.push_back(body);
    } else if (record.front() == kTag) {
      if (batch.tags.size() == kMostTags) break;
      batch.tags.push_back(body);
    } else if (record.front() == kMetrics) {
      if (batch.metrics.size() + 1 + static_cast<size_t>(std::count(body.begin(), body.end(), '\n')) > kMostMetrics)
        break;
      while (!body.empty()) {
        const size_t end = std::min(body.find('\n'), body.size());
        batch.metrics.push_back(body.substr(0, end));
        body.remove_prefix(std::min(end + 1, body.size()));
      }
    } else {
      break;
    }
  }
  log_batch(batch);
  return taken;
}

std::pair<MlflowSink::Batch, MlflowSink::Batch> MlflowSink::Batch::split() const {
  Batch first, second;
  const auto divide = [](const auto& all, auto& front, auto& back, size_t count) {
    front.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    back.assign(all.begin() + static_cast<std::ptrdiff_t>(count), all.end());
  };
  size_t left = size() / 2;
  for (auto member : {&Batch::metrics, &Batch::parameters, &Batch::tags}) {
    const auto& all = this->*member;
    const size_t count = std::min(all.size(), left);
    divide(all, first.*member, second.*member, count);
    left -= count;
  }
  return {std::move(first), std::move(second)};
}

void MlflowSink::log_batch(const Batch& batch) {
  const std::string body =
      fmt::format(R"({{"run_id":{},"metrics":[{}],"params":[{}],"tags":[{}]}})", json_text(run_id_),
                  joined(batch.metrics), joined(batch.parameters), joined(batch.tags));
  const HttpResponse response = request("POST", "runs/log-batch", body);
  if (response.status == 200) return;
  if (!refuses(response))
    throw Error("mlflow", fmt::format("run {}: status {}: {}", run_id_, response.status, shortened(response.body)));
  if (batch.size() > 1) {
    const auto [first, second] = batch.split();
    log_batch(first);
    log_batch(second);
    return;
  }
  // A run that was deleted takes nothing more, until it is restored: what is sent then is not at fault.
  const Json run = call("GET", "runs/get?run_id=" + url_escaped(run_id_), nullptr).at("run").at("info");
  if (run.value("lifecycle_stage", "active") != "active")
    throw Error("mlflow", fmt::format("the run {} was deleted on the server; restore it there", run_id_));
  refused_one(batch, shortened(response.body));
}

void MlflowSink::refused_one(const Batch& batch, const std::string& reason) {
  if (!batch.parameters.empty()) {
    const Json parameter = parsed(batch.parameters.front());
    const std::string key = parameter.value("key", "");
    const std::string value = parameter.value("value", "");
    // MLflow never changes a parameter. The new value is kept where values may change.
    const Json run = call("GET", "runs/get?run_id=" + url_escaped(run_id_), nullptr).at("run");
    const Json known = run.value("data", Json::object()).value("params", Json::array());
    const bool changed =
        std::any_of(known.begin(), known.end(), [&](const Json& item) { return item.value("key", "") == key; });
    if (changed) {
      const std::string tag = mlflow::tag_record("changed." + key, value).substr(1);
      Batch again;
      again.tags = {tag};
      log_batch(again);
      return;
    }
    // A server of an earlier version takes fewer characters.
    if (value.size() > kShortParameter) {
      const std::string shorter = pair_record(kParameter, key, value, kShortParameter).substr(1);
      Batch again;
      again.parameters = {shorter};
      log_batch(again);
      return;
    }
  }
  set_aside(joined(batch.metrics) + joined(batch.parameters) + joined(batch.tags), reason);
}

void MlflowSink::set_aside(std::string_view what, const std::string& reason) {
  const std::string path = options_.folder + "/refused.txt";
  auto& files = FileSystem::current();
  files.create_directories(options_.folder);
  const auto file = files.open_append(path);
  file->append(fmt::format("{}\t{}\n", reason, what));
  file->close();
  if (std::exchange(warned_of_refusal_, true)) return;
  log::warning(
      fmt::format("MLflow logger: the server does not take {}: {}; it and what else is refused is written to {}",
                  mlflow_text(what, 200), reason, path));
}

void MlflowSink::update_status(std::string_view body) {
  Json update = parsed(body);
  update["run_id"] = run_id_;
  call("POST", "runs/update", update);
}

// ---- The run.

void MlflowSink::ensure_run() {
  if (!artifact_uri_.empty()) return;
  if (key_.empty()) {
    const std::string path = options_.folder + "/run.json";
    const Json known = FileSystem::current().exists(path)
                           ? Json::parse(FileSystem::current().read_file(path), nullptr, /*allow_exceptions=*/false)
                           : Json();
    if (known.is_object()) {
      key_ = known.value("key", "");
      may_exist_ = true;
      if (run_id_.empty()) run_id_ = known.value("run_id", "");
    }
    if (key_.empty()) key_ = random_key();
    save();
  }
  // What waits can be sent to another address later, as the run that run.json says.
  const std::string& uri = options_.tracking_uri;
  if (!uri.starts_with("http://") && !uri.starts_with("https://"))
    throw Error("mlflow",
                fmt::format("{}; valid: the address of an MLflow server, such as http://127.0.0.1:5000; set "
                            "the logger's tracking_uri or MLFLOW_TRACKING_URI",
                            uri.empty() ? "no tracking_uri" : fmt::format("wrong tracking_uri; got '{}'", uri)));
  if (run_id_.empty() && may_exist_) find_run();
  if (run_id_.empty()) create_run();
  const Json run = call("GET", "runs/get?run_id=" + url_escaped(run_id_), nullptr).at("run");
  save();
  artifact_uri_ = run.at("info").value("artifact_uri", "");
  if (artifact_uri_.empty()) artifact_uri_ = "none";
}

std::string MlflowSink::experiment_id() {
  const std::string query = "experiments/get-by-name?experiment_name=" + url_escaped(options_.experiment_name);
  HttpResponse response = request("GET", query, "");
  if (response.status == 404 || error_code(response) == "RESOURCE_DOES_NOT_EXIST") {
    response = request("POST", "experiments/create", Json{{"name", options_.experiment_name}}.dump());
    if (response.status == 200) return Json::parse(response.body).at("experiment_id");
    // Another run may have made it meanwhile.
    if (error_code(response) == "RESOURCE_ALREADY_EXISTS") response = request("GET", query, "");
  }
  if (response.status != 200)
    throw Error("mlflow", fmt::format("experiment '{}': status {}: {}", options_.experiment_name, response.status,
                                      shortened(response.body)));
  const Json experiment = Json::parse(response.body).at("experiment");
  if (experiment.value("lifecycle_stage", "active") != "active")
    throw Error("mlflow", fmt::format("experiment '{}' was deleted on the server; hint: restore it there, or set "
                                      "another experiment_name",
                                      options_.experiment_name));
  return experiment.at("experiment_id");
}

void MlflowSink::create_run() {
  Json tags = Json::array({{{"key", kKeyTag}, {"value", key_}}});
  for (const auto& [key, value] : options_.tags)
    tags.push_back({{"key", mlflow_name(key)}, {"value", mlflow_text(value, kLongestTag)}});
  Json body{{"experiment_id", experiment_id()}, {"start_time", options_.start_milliseconds}, {"tags", tags}};
  if (!options_.run_name.empty()) body["run_name"] = mlflow_text(options_.run_name, kLongestKey);
  may_exist_ = true;
  run_id_ = call("POST", "runs/create", body).at("run").at("info").at("run_id");
}

void MlflowSink::find_run() {
  const Json found = call("POST", "runs/search",
                          {{"experiment_ids", {experiment_id()}},
                           {"filter", fmt::format("tags.`{}` = '{}'", kKeyTag, key_)},
                           {"max_results", 1}});
  if (found.contains("runs") && !found["runs"].empty()) run_id_ = found["runs"].at(0).at("info").at("run_id");
}

void MlflowSink::save() {
  try {
    write_state();
  } catch (const Error& error) {
    if (!std::exchange(warned_of_state_, true))
      log::warning(
          fmt::format("MLflow logger: {}; what is logged is sent all the same, but no later process will know "
                      "the run",
                      error.what()));
  }
}

void MlflowSink::write_state() const {
  auto& files = FileSystem::current();
  const Json json{{"tracking_uri", options_.tracking_uri},
                  {"experiment_name", options_.experiment_name},
                  {"run_name", options_.run_name},
                  {"tags", options_.tags},
                  {"start_milliseconds", options_.start_milliseconds},
                  {"key", key_},
                  {"run_id", run_id_}};
  const std::string path = options_.folder + "/run.json";
  files.create_directories(options_.folder);
  const auto file = files.create(path + ".new");
  file->append(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  file->close();
  files.rename(path + ".new", path);
}

std::optional<std::string> MlflowSink::run_id_of(const std::string& folder) {
  const std::string path = folder + "/run.json";
  if (!FileSystem::current().exists(path)) return std::nullopt;
  const Json json = Json::parse(FileSystem::current().read_file(path), nullptr, /*allow_exceptions=*/false);
  const std::string id = json.is_object() ? json.value("run_id", "") : "";
  return id.empty() ? std::nullopt : std::optional(id);
}

MlflowSinkOptions MlflowSink::options_of(const std::string& folder) {
  const std::string path = folder + "/run.json";
  if (!FileSystem::current().exists(path))
    throw Error("mlflow", fmt::format("{} is not there: no run with the MLflow logger wrote into this folder", path));
  const Json json = Json::parse(FileSystem::current().read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Error("mlflow", fmt::format("{} is damaged", path));
  return {.folder = folder,
          .tracking_uri = json.value("tracking_uri", ""),
          .experiment_name = json.value("experiment_name", ""),
          .run_name = json.value("run_name", ""),
          .tags = json.value("tags", std::map<std::string, std::string>()),
          .run_id = json.value("run_id", ""),
          .start_milliseconds = json.value("start_milliseconds", int64_t{0})};
}

// ---- Artifacts.

void MlflowSink::upload(const std::string& artifact_path, HttpRequest put) {
  constexpr std::string_view kProxied = "mlflow-artifacts:";
  constexpr std::string_view kLocal = "file://";
  const std::string& uri = artifact_uri_;
  if (uri.starts_with(kProxied)) {
    std::string_view root = std::string_view(uri).substr(kProxied.size());
    std::string server = options_.tracking_uri;
    if (root.starts_with("//")) {
      // A server of its own for artifacts, reached the same way.
      root.remove_prefix(2);
      const size_t end = std::min(root.find('/'), root.size());
      if (end > 0) server = server.substr(0, server.find("//") + 2) + std::string(root.substr(0, end));
      root.remove_prefix(end);
    }
    while (server.ends_with('/')) server.pop_back();
    put.method = "PUT";
    put.url = server + kArtifactApi + escaped_path(root) + "/" + escaped_path(artifact_path);
    put.content_type = "application/octet-stream";
    const HttpResponse response = client_.send(put, *stop_);
    if (response.status == 200) return;
    if (!refuses(response))
      throw Error("mlflow",
                  fmt::format("{} answered with status {}: {}", put.url, response.status, shortened(response.body)));
    set_aside("the artifact " + artifact_path, shortened(response.body));
    return;
  }
  if (uri.starts_with(kLocal) || uri.starts_with('/')) {
    const std::filesystem::path root = uri.starts_with(kLocal) ? uri.substr(kLocal.size()) : uri;
    // The server's files are ours only when it runs on this machine: its experiment's folder is then here.
    const auto experiment = root.parent_path().parent_path();
    if (std::filesystem::is_directory(experiment.parent_path())) {
      const auto target = root / artifact_path;
      auto& files = FileSystem::current();
      files.create_directories(target.parent_path().string());
      if (put.file.empty()) {
        const auto file = files.create(target.string());
        file->append(put.body);
        file->close();
        return;
      }
      std::error_code error;
      std::filesystem::copy_file(put.file, target, std::filesystem::copy_options::overwrite_existing, error);
      if (error) throw Error("mlflow", fmt::format("cannot write {}: {}", target.string(), error.message()));
      return;
    }
  }
  set_aside("the artifact " + artifact_path,
            fmt::format("it keeps artifacts in {}, which is not reached through it; hint: start it with "
                        "`mlflow server --serve-artifacts`",
                        uri));
}

// ---- Requests.

HttpResponse MlflowSink::request(const std::string& method, const std::string& path, const std::string& body) {
  std::string server = options_.tracking_uri;
  while (server.ends_with('/')) server.pop_back();
  HttpResponse response = client_.send({.method = method, .url = server + kApi + path, .body = body}, *stop_);
  if (response.status == 200 || refuses(response) || !error_code(response).empty()) {
    const bool passing =
        response.status == 401 || response.status == 403 || response.status == 429 || response.status >= 500;
    if (!passing) return response;
  }
  const char* hint = response.status == 401 || response.status == 403
                         ? "; hint: MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
                         : "";
  throw Error("mlflow",
              fmt::format("{} answered with status {}: {}{}", server, response.status, shortened(response.body), hint));
}

Json MlflowSink::call(const std::string& method, const std::string& path, const Json& body) {
  const HttpResponse response =
      request(method, path, body.is_null() ? "" : body.dump(-1, ' ', false, Json::error_handler_t::replace));
  Json answer = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (response.status != 200 || !answer.is_object())
    throw Error("mlflow", fmt::format("{} answered {} with status {}: {}", options_.tracking_uri,
                                      path.substr(0, path.find('?')), response.status, shortened(response.body)));
  return answer;
}

}  // namespace levin
