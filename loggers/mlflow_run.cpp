#include <levin/loggers/mlflow_run.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/loggers/mlflow_names.h>
#include <levin/loggers/mlflow_records.h>
#include <levin/loggers/random_id.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <thread>
#include <utility>

namespace levin {
namespace {

using Json = nlohmann::json;

constexpr const char* kKeyTag = "levin.key";
constexpr size_t kKeyLength = 32;

std::string path_in(const std::string& folder) { return folder + "/run.json"; }

/// Null when the server has no such run.
Json get_run(MlflowClient& client, const std::string& id) {
  const HttpResponse response = client.request("GET", "runs/get?run_id=" + url_escaped(id));
  if (mlflow::is_missing(response)) return nullptr;
  const Json answer = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (response.status != 200 || !answer.contains("run"))
    throw Error("mlflow", fmt::format("run {}: status {}: {}", id, response.status, mlflow::message_of(response)));
  return answer["run"];
}

}  // namespace

MlflowRun::Place MlflowRun::find_or_make(MlflowClient& client) {
  // Another thread may be waiting for the server here, which must not delay the end of this one.
  while (!mutex_.try_lock()) {
    if (client.stopped()) throw Error("mlflow", "the run is not known yet");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const MutexLock lock(mutex_, std::adopt_lock);
  if (place_) return *place_;
  if (key_.empty()) {
    load();
    save();
  }
  Json run = id_.empty() ? Json() : get_run(client, id_);
  if (run.is_null()) {
    if (options_.must_exist)
      throw Error("mlflow",
                  fmt::format("{} has no run {}; hint: another run_id, or none for a new run", client.address(), id_));
    may_exist_ = may_exist_ || !id_.empty();
    std::string id = may_exist_ ? find(client) : "";
    if (id.empty()) id = make(client);
    if (!id_.empty())
      log::warning(
          fmt::format("MLflow logger: {} has no run {}; what is logged goes to the run {}", client.address(), id_, id));
    id_ = std::move(id);
    run = get_run(client, id_);
    if (run.is_null())
      throw Error("mlflow", fmt::format("{} does not know the run {} any more", client.address(), id_));
  }
  save();
  place_ = Place{.id = id_, .artifact_uri = run.at("info").value("artifact_uri", "")};
  return *place_;
}

void MlflowRun::load() {
  const auto kept = kept_in(options_.folder);
  key_ = options_.key;
  may_exist_ = kept || !key_.empty();
  if (key_.empty() && kept) key_ = kept->key;
  if (key_.empty()) key_ = random_id(kKeyLength);
  if (id_.empty() && kept) id_ = kept->run_id;
}

std::string MlflowRun::experiment_id(MlflowClient& client) const {
  const std::string query = "experiments/get-by-name?experiment_name=" + url_escaped(options_.experiment_name);
  HttpResponse response = client.request("GET", query);
  if (mlflow::is_missing(response)) {
    response = client.request("POST", "experiments/create", Json{{"name", options_.experiment_name}}.dump());
    if (response.status == 200) return Json::parse(response.body).at("experiment_id");
    // Another run may have made it meanwhile.
    if (mlflow::error_code(response) == "RESOURCE_ALREADY_EXISTS") response = client.request("GET", query);
  }
  if (response.status != 200)
    throw Error("mlflow", fmt::format("experiment '{}': status {}: {}", options_.experiment_name, response.status,
                                      mlflow::message_of(response)));
  const Json experiment = Json::parse(response.body).at("experiment");
  if (experiment.value("lifecycle_stage", "active") != "active")
    throw Error("mlflow", fmt::format("experiment '{}' was deleted on the server; hint: restore it there, or set "
                                      "another experiment_name",
                                      options_.experiment_name));
  return experiment.at("experiment_id");
}

std::string MlflowRun::find(MlflowClient& client) const {
  const Json found = client.call("POST", "runs/search",
                                 {{"experiment_ids", {experiment_id(client)}},
                                  {"filter", fmt::format("tags.`{}` = '{}'", kKeyTag, key_)},
                                  {"max_results", 1}});
  if (!found.contains("runs") || found["runs"].empty()) return "";
  return found["runs"].at(0).at("info").at("run_id");
}

std::string MlflowRun::make(MlflowClient& client) {
  Json tags = Json::array({{{"key", kKeyTag}, {"value", key_}}});
  for (const auto& [key, value] : options_.tags)
    tags.push_back({{"key", mlflow_name(key)}, {"value", mlflow_text(value, mlflow::kLongestTag)}});
  Json body{{"experiment_id", experiment_id(client)}, {"start_time", options_.start_milliseconds}, {"tags", tags}};
  if (!options_.run_name.empty()) body["run_name"] = mlflow_text(options_.run_name, mlflow::kLongestKey);
  may_exist_ = true;
  return client.call("POST", "runs/create", body).at("run").at("info").at("run_id");
}

void MlflowRun::save() {
  try {
    write();
  } catch (const Error& error) {
    if (std::exchange(warned_, true)) return;
    log::warning(
        fmt::format("MLflow logger: {}; what is logged is sent all the same, but no later process will know "
                    "the run",
                    error.what()));
  }
}

void MlflowRun::write() const {
  auto& files = FileSystem::current();
  const Json json{{"tracking_uri", options_.tracking_uri},
                  {"experiment_name", options_.experiment_name},
                  {"run_name", options_.run_name},
                  {"tags", options_.tags},
                  {"run_id", id_},
                  {"must_exist", options_.must_exist},
                  {"key", key_},
                  {"start_milliseconds", options_.start_milliseconds}};
  files.create_directories(options_.folder);
  files.replace_file(path_in(options_.folder), json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<MlflowRunOptions> MlflowRun::kept_in(const std::string& folder) {
  const std::string path = path_in(folder);
  if (!FileSystem::current().exists(path)) return std::nullopt;
  const Json json = Json::parse(FileSystem::current().read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const Json start = json.value("start_milliseconds", Json(0));
  if (!start.is_number_integer()) return std::nullopt;
  try {
    return MlflowRunOptions{.folder = folder,
                            .tracking_uri = json.value("tracking_uri", ""),
                            .experiment_name = json.value("experiment_name", ""),
                            .run_name = json.value("run_name", ""),
                            .tags = json.value("tags", std::map<std::string, std::string>()),
                            .run_id = json.value("run_id", ""),
                            .must_exist = json.value("must_exist", false),
                            .key = json.value("key", ""),
                            .start_milliseconds = start.get<int64_t>()};
  } catch (const Json::exception&) {  // a value of another type: damaged, as a text that is no JSON
    return std::nullopt;
  }
}

}  // namespace levin
