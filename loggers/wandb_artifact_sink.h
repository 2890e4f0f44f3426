#pragma once

#include <levin/loggers/background_worker.h>
#include <levin/loggers/wandb_sink.h>

#include <atomic>
#include <span>
#include <string>
#include <vector>

namespace levin {

namespace wandb {

/// A folder's files as an artifact of type "model".
struct Artifact {
  std::string name;
  std::string directory;
  std::vector<std::string> files;  ///< relative to the directory
  std::vector<std::string> aliases;
  std::string metadata_json;
};

/// Makes the record of an artifact that a WandbArtifactSink takes.
std::string artifact_request(const Run& run, const Artifact& artifact);

}  // namespace wandb

/// Reads the files of artifacts for their digests, and then hands each artifact's record to the worker that writes the
/// run. It has a worker of its own: reading a large checkpoint takes minutes, in which rows are written all the same
/// (W&B asks for no order among them). An artifact that cannot be read, or not before the end, is left out with a
/// warning.
class WandbArtifactSink final : public RecordSink {
 public:
  /// `run`: outlives this.
  explicit WandbArtifactSink(BackgroundWorker& run) : run_(run) {}

  size_t send(std::span<const std::string> requests, const std::atomic<bool>& stop) override;

 private:
  BackgroundWorker& run_;
};

}  // namespace levin
