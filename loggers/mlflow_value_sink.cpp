#include <levin/loggers/mlflow_value_sink.h>

#include <levin/core/base/error.h>
#include <levin/loggers/json_text.h>
#include <levin/loggers/mlflow_records.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace levin {
namespace {

using Json = nlohmann::json;
using mlflow::RecordKind;

/// What servers of every age take as a parameter.
constexpr size_t kShortParameter = 250;
/// The records of a request, with room for what is around them.
constexpr size_t kMostRecordBytes = mlflow::kMostBytes - 10'000;

/// What a record holds; an empty object when the disk it came from has damaged it.
Json parsed(std::string_view body) {
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

std::string joined(const std::vector<std::string_view>& parts) {
  std::string text;
  for (const auto& part : parts) {
    if (!text.empty()) text += ',';
    text += part;
  }
  return text;
}

}  // namespace

MlflowValueSink::MlflowValueSink(const MlflowAccess& access, std::shared_ptr<MlflowRun> run,
                                 std::shared_ptr<MlflowRefused> refused)
    : client_(access), run_(std::move(run)), refused_(std::move(refused)) {}

size_t MlflowValueSink::send(std::span<const std::string> records, const std::atomic<bool>& stop) {
  client_.set_stop(stop);
  run_id_ = run_->find_or_make(client_).id;
  const std::string& first = records.front();
  switch (mlflow::kind_of(first)) {
    case RecordKind::kMetrics:
    case RecordKind::kParameter:
    case RecordKind::kTag:
      return send_batch(records);
    case RecordKind::kStatus:
      update_status(mlflow::body_of(first));
      return 1;
    default:
      return 0;
  }
}

bool MlflowValueSink::Batch::add(std::string_view record) {
  std::string_view body = mlflow::body_of(record);
  const RecordKind kind = mlflow::kind_of(record);
  const size_t count =
      kind == RecordKind::kMetrics ? 1 + static_cast<size_t>(std::count(body.begin(), body.end(), '\n')) : 1;
  // The first record goes whatever it is: the server says what is wrong with it.
  if (size() > 0 && (size() + count > mlflow::kMostEntities || bytes + body.size() > kMostRecordBytes)) return false;
  if (kind == RecordKind::kParameter) {
    if (parameters.size() == mlflow::kMostParameters) return false;
    parameters.push_back(body);
  } else if (kind == RecordKind::kTag) {
    if (tags.size() == mlflow::kMostTags) return false;
    tags.push_back(body);
  } else if (kind == RecordKind::kMetrics) {
    for (std::string_view rest = body; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      metrics.push_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  } else {
    return false;
  }
  bytes += body.size() + count;  // with a comma for each
  return true;
}

std::pair<MlflowValueSink::Batch, MlflowValueSink::Batch> MlflowValueSink::Batch::split() const {
  Batch first, second;
  size_t left = size() / 2;
  for (auto member : {&Batch::metrics, &Batch::parameters, &Batch::tags}) {
    const auto& all = this->*member;
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), left));
    (first.*member).assign(all.begin(), middle);
    (second.*member).assign(middle, all.end());
    left -= (first.*member).size();
  }
  return {std::move(first), std::move(second)};
}

size_t MlflowValueSink::send_batch(std::span<const std::string> records) {
  Batch batch;
  size_t taken = 0;
  while (taken < records.size() && batch.add(records[taken])) ++taken;
  if (batch.size() > 0) log_batch(batch);
  return taken;
}

void MlflowValueSink::log_batch(const Batch& batch) {
  const std::string body =
      fmt::format(R"({{"run_id":{},"metrics":[{}],"params":[{}],"tags":[{}]}})", json_text(run_id_),
                  joined(batch.metrics), joined(batch.parameters), joined(batch.tags));
  const HttpResponse response = client_.request("POST", "runs/log-batch", body);
  if (response.status == 200) return;
  if (!mlflow::refuses(response))
    throw Error("mlflow", fmt::format("run {}: status {}: {}", run_id_, response.status, mlflow::message_of(response)));
  if (batch.size() > 1) {
    const auto [first, second] = batch.split();
    log_batch(first);
    log_batch(second);
    return;
  }
  // A run that was deleted takes nothing more, until it is restored: what is sent then is not at fault.
  const Json run = client_.call("GET", "runs/get?run_id=" + url_escaped(run_id_), nullptr).at("run");
  if (run.at("info").value("lifecycle_stage", "active") != "active")
    throw Error("mlflow", fmt::format("the run {} was deleted on the server; restore it there", run_id_));
  refused_one(batch, mlflow::message_of(response));
}

void MlflowValueSink::refused_one(const Batch& batch, const std::string& reason) {
  if (!batch.parameters.empty()) {
    const Json parameter = parsed(batch.parameters.front());
    const std::string key = parameter.value("key", "");
    const std::string value = parameter.value("value", "");
    // MLflow never changes a parameter. The new value is kept where values may change.
    const Json run = client_.call("GET", "runs/get?run_id=" + url_escaped(run_id_), nullptr).at("run");
    const Json known = run.value("data", Json::object()).value("params", Json::array());
    const bool changed =
        std::any_of(known.begin(), known.end(), [&](const Json& item) { return item.value("key", "") == key; });
    std::string again;
    if (changed)
      again = mlflow::tag_record("changed." + key, value);
    else if (value.size() > kShortParameter)  // a server of an earlier version takes fewer characters
      again = mlflow::parameter_record(key, value, kShortParameter);
    if (Batch other; !again.empty() && other.add(again)) {
      log_batch(other);
      return;
    }
  }
  refused_->add(joined(batch.metrics) + joined(batch.parameters) + joined(batch.tags), reason);
}

void MlflowValueSink::update_status(std::string_view body) {
  Json update = parsed(body);
  update["run_id"] = run_id_;
  client_.call("POST", "runs/update", update);
}

}  // namespace levin
