#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Messages to an MLflow server, as records for a BackgroundWorker.
namespace levin::mlflow {

// What one request may carry, as servers check it (mlflow/utils/validation.py).
inline constexpr size_t kMostEntities = 1000;  ///< metrics, parameters and tags together
inline constexpr size_t kMostParameters = 100;
inline constexpr size_t kMostTags = 100;
inline constexpr size_t kMostBytes = 1'000'000;
inline constexpr size_t kLongestKey = 250;
inline constexpr size_t kLongestParameter = 6000;
inline constexpr size_t kLongestTag = 5000;

/// Kind of a record, its first byte.
enum class RecordKind : char {
  kMetrics = 'M',    ///< JSON objects, each on a line
  kParameter = 'P',  ///< a JSON object
  kTag = 'T',        ///< a JSON object
  kStatus = 'S',     ///< a JSON object
  kFile = 'F',       ///< an artifact in a file
  kBytes = 'B',      ///< an artifact in the record
  kUnknown = '\0'    ///< of another version, or damaged
};
RecordKind kind_of(std::string_view record);
/// Whether the record goes to the store of artifacts.
bool is_artifact(std::string_view record);
/// The part of a record after its kind.
std::string_view body_of(std::string_view record);

/// A value with the name under which MLflow keeps it.
struct Metric {
  std::string_view key;
  double value = 0;
};

/// Makes records of `metrics` at one moment; several where there are more than a request may carry.
std::vector<std::string> metric_records(std::span<const Metric> metrics, int64_t milliseconds, int64_t step);
/// Makes a record of a key and its value, cut to MLflow's limits.
std::string parameter_record(std::string_view key, std::string_view value, size_t longest_value = kLongestParameter);
std::string tag_record(std::string_view key, std::string_view value);
/// Makes a record of the run's state. `status`: RUNNING, FINISHED, FAILED or KILLED; `end_milliseconds`: 0 while it
/// runs.
std::string status_record(std::string_view status, int64_t end_milliseconds);

/// Contents of an artifact's record.
struct Artifact {
  std::string path;        ///< below the run's artifacts
  std::string file;        ///< relative to the run's mlflow folder; removed once it is sent; empty: `bytes`
  std::string_view bytes;  ///< held by the record
};
std::string file_record(const std::string& artifact_path, const std::string& file);
std::string bytes_record(const std::string& artifact_path, std::string_view bytes);
/// Parses an artifact's record; nothing for one that is no artifact, or damaged.
std::optional<Artifact> artifact_of(std::string_view record);

}  // namespace levin::mlflow
