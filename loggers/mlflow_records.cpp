#include <levin/loggers/mlflow_records.h>

#include <levin/loggers/json_text.h>
#include <levin/loggers/mlflow_names.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <iterator>

namespace levin::mlflow {
namespace {

using Json = nlohmann::json;

char letter(RecordKind kind) { return static_cast<char>(kind); }

/// As MLflow's JSON has doubles: the shortest digits that give the same number, and words in quotation marks.
std::string json_number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return fmt::format("{}", value);
}

std::string pair_record(RecordKind kind, std::string_view key, std::string_view value, size_t longest) {
  return fmt::format("{}{{\"key\":{},\"value\":{}}}", letter(kind), json_text(mlflow_text(key, kLongestKey)),
                     json_text(mlflow_text(value, longest)));
}

}  // namespace

RecordKind kind_of(std::string_view record) {
  constexpr std::string_view kKinds = "MPTSFB";
  const bool known = !record.empty() && kKinds.find(record.front()) != std::string_view::npos;
  return known ? static_cast<RecordKind>(record.front()) : RecordKind::kUnknown;
}

bool is_artifact(std::string_view record) {
  const RecordKind kind = kind_of(record);
  return kind == RecordKind::kFile || kind == RecordKind::kBytes;
}

std::string_view body_of(std::string_view record) { return record.substr(record.empty() ? 0 : 1); }

std::vector<std::string> metric_records(std::span<const Metric> metrics, int64_t milliseconds, int64_t step) {
  std::vector<std::string> records;
  for (size_t i = 0; i < metrics.size(); ++i) {
    if (i % kMostEntities == 0) records.emplace_back(1, letter(RecordKind::kMetrics));
    if (records.back().size() > 1) records.back() += '\n';
    fmt::format_to(std::back_inserter(records.back()), R"({{"key":{},"value":{},"timestamp":{},"step":{}}})",
                   json_text(metrics[i].key), json_number(metrics[i].value), milliseconds, step);
  }
  return records;
}

std::string parameter_record(std::string_view key, std::string_view value, size_t longest_value) {
  return pair_record(RecordKind::kParameter, key, value, longest_value);
}

std::string tag_record(std::string_view key, std::string_view value) {
  return pair_record(RecordKind::kTag, key, value, kLongestTag);
}

std::string status_record(std::string_view status, int64_t end_milliseconds) {
  Json body{{"status", status}};
  if (end_milliseconds > 0) body["end_time"] = end_milliseconds;
  return letter(RecordKind::kStatus) + body.dump();
}

std::string file_record(const std::string& artifact_path, const std::string& file) {
  const Json body{{"path", artifact_path}, {"file", file}};
  return letter(RecordKind::kFile) + body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string bytes_record(const std::string& artifact_path, std::string_view bytes) {
  return fmt::format("{}{}\n{}", letter(RecordKind::kBytes), artifact_path, bytes);
}

std::optional<Artifact> artifact_of(std::string_view record) {
  const std::string_view body = body_of(record);
  Artifact artifact;
  if (kind_of(record) == RecordKind::kBytes) {
    const size_t end = body.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    artifact.path = body.substr(0, end);
    artifact.bytes = body.substr(end + 1);
  } else if (kind_of(record) == RecordKind::kFile) {
    const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return std::nullopt;
    const auto path = json.find("path");
    const auto file = json.find("file");
    if (path == json.end() || !path->is_string() || file == json.end() || !file->is_string()) return std::nullopt;
    artifact.path = *path;
    artifact.file = *file;
    if (artifact.file.empty()) return std::nullopt;
  }
  return artifact.path.empty() ? std::nullopt : std::optional(std::move(artifact));
}

}  // namespace levin::mlflow
