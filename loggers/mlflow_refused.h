#pragma once

#include <levin/core/base/mutex.h>
#include <levin/loggers/mlflow_records.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace levin {

/// Keeps, in a run's mlflow folder, what an MLflow server will never take: refused.txt says what and why, a line each;
/// refused/ holds the artifacts, by the names that they would have had on the server. The first is a warning. For
/// several threads; calls throw levin::Error when the disk does not take it.
class MlflowRefused {
 public:
  explicit MlflowRefused(std::string folder) : folder_(std::move(folder)) {}

  void add(std::string_view what, const std::string& reason);
  /// `file`: the artifact's own, which is moved; empty for one in its record.
  void add_artifact(const mlflow::Artifact& artifact, const std::string& file, const std::string& reason);

  int64_t count() const { return count_; }

 private:
  const std::string folder_;
  Mutex mutex_;  ///< held while refused.txt is written
  std::atomic<int64_t> count_ = 0;
};

}  // namespace levin
