#pragma once

#include "stand_in_server.h"

#include <nlohmann/json.hpp>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace levin::testing {

/// What of MLflow's REST API the loggers use, on loopback and in memory, with MLflow's limits and errors, and with what
/// a test wants to go wrong.
class StandInMlflow {
 public:
  using Json = nlohmann::json;

  struct Run {
    std::map<std::string, std::string> tags;
    std::map<std::string, std::string> parameters;
    std::map<std::string, std::vector<Json>> metrics;  ///< by name: {key, value, timestamp, step} as they came
    std::string status;
  };

  StandInMlflow() : server_([this](const Request& request) { return answer(request); }) {}

  std::string uri() const { return server_.uri(); }
  /// By id.
  std::map<std::string, Run> runs() const { return locked(runs_); }
  /// The only run. By value: what a reference leads to would not live.
  Run run() const {
    const auto all = runs();
    if (all.size() != 1) throw std::runtime_error("there are " + std::to_string(all.size()) + " runs");
    return all.begin()->second;
  }
  /// What went through the server, by path below the store.
  std::map<std::string, std::string> artifacts() const { return locked(artifacts_); }
  /// Requests that were answered with 400, as their first lines.
  std::vector<std::string> bad_requests() const { return locked(bad_requests_); }
  /// Headers of the latest request.
  std::string latest_head() const { return locked(latest_head_); }

  /// Answers come after so many seconds.
  void be_slow(double seconds) {
    const std::lock_guard lock(mutex_);
    seconds_ = seconds;
  }
  /// Artifacts get this status in place of being taken.
  void refuse_artifacts(int status) {
    const std::lock_guard lock(mutex_);
    artifact_status_ = status;
  }
  /// Where runs made from now on have their artifacts; "/EXPERIMENT/RUN/artifacts" follows.
  void keep_artifacts_in(const std::string& store) {
    const std::lock_guard lock(mutex_);
    store_ = store;
  }

 private:
  template <class T>
  T locked(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  Answer answer(const Request& request) {
    const std::lock_guard lock(mutex_);
    latest_head_ = request.head;
    Answer answer = answer_to(request.line(), request.body);
    answer.seconds = seconds_;
    if (answer.status == 400) bad_requests_.push_back(request.line());
    return answer;
  }

  Answer answer_to(const std::string& line, const std::string& body) {
    const std::string kApi = "/api/2.0/mlflow/";
    const std::string kArtifacts = "PUT /api/2.0/mlflow-artifacts/artifacts/";
    if (line.starts_with(kArtifacts)) {
      if (artifact_status_ != 200) return {artifact_status_, "the store does not take it"};
      artifacts_[line.substr(kArtifacts.size())] = body;
      return {200, "{}"};
    }
    const auto asks = [&](const std::string& what) { return line.find(kApi + what) != std::string::npos; };
    if (asks("experiments/get-by-name"))
      return {200, R"({"experiment": {"experiment_id": "1", "lifecycle_stage": "active"}})"};
    if (asks("runs/get?run_id=")) return described(line.substr(line.find('=') + 1));
    const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return error(400, "BAD_REQUEST");
    if (asks("runs/create")) {
      const std::string id = "run" + std::to_string(runs_.size() + 1) + "of" + uri().substr(uri().rfind(':') + 1);
      stores_[id] = store_;
      for (const auto& tag : json["tags"]) runs_[id].tags[tag["key"]] = tag["value"];
      return described(id);
    }
    if (asks("runs/search")) {
      Json found = Json::array();
      for (const auto& [id, run] : runs_)
        if (json["filter"] == "tags.`levin.key` = '" + run.tags.at("levin.key") + "'")
          found.push_back({{"info", {{"run_id", id}}}});
      return {200, Json{{"runs", found}}.dump()};
    }
    const auto run = runs_.find(json.value("run_id", ""));
    if (run == runs_.end()) return error(404, "RESOURCE_DOES_NOT_EXIST");
    if (asks("runs/update")) {
      run->second.status = json["status"];
      return {200, "{}"};
    }
    if (asks("runs/log-batch")) return log_batch(run->second, json, body.size());
    return error(404, "ENDPOINT_NOT_FOUND");
  }

  Answer log_batch(Run& run, const Json& json, size_t bytes) {
    const auto &metrics = json["metrics"], &parameters = json["params"], &tags = json["tags"];
    if (parameters.size() > 100 || tags.size() > 100 || bytes > 1'000'000 ||
        metrics.size() + parameters.size() + tags.size() > 1000)
      return error(400, "INVALID_PARAMETER_VALUE");
    for (const auto& metric : metrics) run.metrics[metric["key"]].push_back(metric);
    for (const auto& parameter : parameters) run.parameters[parameter["key"]] = parameter["value"];
    for (const auto& tag : tags) run.tags[tag["key"]] = tag["value"];
    return {200, "{}"};
  }

  Answer described(const std::string& id) const {
    if (!runs_.contains(id)) return error(404, "RESOURCE_DOES_NOT_EXIST");
    const Json info{{"run_id", id}, {"artifact_uri", stores_.at(id) + "/1/" + id + "/artifacts"}};
    return {200, Json{{"run", {{"info", info}, {"data", Json::object()}}}}.dump()};
  }

  static Answer error(int status, const std::string& code) {
    return {status, Json{{"error_code", code}, {"message", "it is " + code}}.dump()};
  }

  mutable std::mutex mutex_;
  std::map<std::string, Run> runs_;
  std::map<std::string, std::string> stores_;
  std::map<std::string, std::string> artifacts_;
  std::vector<std::string> bad_requests_;
  std::string latest_head_;
  int artifact_status_ = 200;
  double seconds_ = 0;
  std::string store_ = "mlflow-artifacts:";
  StandInServer server_;  ///< the last member: its thread uses the others
};

}  // namespace levin::testing
