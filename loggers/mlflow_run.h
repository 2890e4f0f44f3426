#pragma once

#include <levin/core/base/mutex.h>
#include <levin/loggers/mlflow_client.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace levin {

struct MlflowRunOptions {
  std::string folder = {};        ///< folder of run.json
  std::string tracking_uri = {};  ///< without credentials
  std::string experiment_name = {};
  std::string run_name = {};
  std::map<std::string, std::string> tags = {};
  std::string run_id = {};  ///< a run to go on with; empty: the one of run.json, else a new one
  bool must_exist = false;  ///< no other run will do than `run_id`
  std::string key = {};  ///< key that the run to go on with was made with; empty: the one of run.json, else a new one
  int64_t start_milliseconds = 0;
};

/// The run of MLflow to which a folder's records go. It is found or made once, by the thread that needs it first;
/// run.json in the folder says which it is to later processes. For several threads.
///
/// A run is marked with a key, a tag, from before its id is known. By it the run is found when the server's answer to
/// its making was lost, and on another server than the one that gave the id.
class MlflowRun {
 public:
  explicit MlflowRun(MlflowRunOptions options) : options_(std::move(options)), id_(options_.run_id) {}

  struct Place {
    std::string id;
    std::string artifact_uri;  ///< address of its artifacts
  };
  /// Finds the run or makes it. Throws levin::Error when the server does not answer or has no such run, and soon after
  /// `client` is told to stop.
  Place find_or_make(MlflowClient& client);

  const std::string& folder() const { return options_.folder; }

  /// Reads run.json in `folder`; nothing when there is none, or a damaged one.
  static std::optional<MlflowRunOptions> kept_in(const std::string& folder);

 private:
  void load() LEVIN_REQUIRES(mutex_);
  void save() LEVIN_REQUIRES(mutex_);
  void write() const LEVIN_REQUIRES(mutex_);
  std::string experiment_id(MlflowClient& client) const;
  /// The id of the run that has the key; empty when there is none.
  std::string find(MlflowClient& client) const LEVIN_REQUIRES(mutex_);
  std::string make(MlflowClient& client) LEVIN_REQUIRES(mutex_);

  const MlflowRunOptions options_;
  Mutex mutex_;
  std::optional<Place> place_ LEVIN_GUARDED_BY(mutex_);
  std::string key_ LEVIN_GUARDED_BY(mutex_);
  bool may_exist_ LEVIN_GUARDED_BY(mutex_) = false;  ///< a run with the key
  std::string id_ LEVIN_GUARDED_BY(mutex_);
  bool warned_ LEVIN_GUARDED_BY(mutex_) = false;
};

}  // namespace levin
