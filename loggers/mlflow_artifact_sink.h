#pragma once

#include <levin/loggers/background_worker.h>
#include <levin/loggers/mlflow_client.h>
#include <levin/loggers/mlflow_refused.h>
#include <levin/loggers/mlflow_run.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace levin {

/// Brings artifacts to where an MLflow run has them: through the server (mlflow-artifacts:), or straight to a folder on
/// this machine. What the store will never take (400, 404, 405, 413, 422, or it is not reached at all) is kept as
/// MlflowRefused says; anything else but success is an error to try again.
class MlflowArtifactSink final : public RecordSink {
 public:
  MlflowArtifactSink(const MlflowAccess& access, std::shared_ptr<MlflowRun> run,
                     std::shared_ptr<MlflowRefused> refused);

  size_t send(std::span<const std::string> records, const std::atomic<bool>& stop) override;

 private:
  /// Returns why the store will never take it; nothing once it is there.
  std::string store(const std::string& root, const mlflow::Artifact& artifact, const std::string& file);
  std::string store_by_server(std::string_view root, const mlflow::Artifact& artifact, const std::string& file);

  MlflowClient client_;
  const std::shared_ptr<MlflowRun> run_;
  const std::shared_ptr<MlflowRefused> refused_;
};

namespace mlflow {

/// Whether the folder STORE/EXPERIMENT/RUN/artifacts of the server at `address` is on a disk of this machine, and not
/// only a path that could be made here as well. The run's own folder proves it: its name is nobody else's. Where the
/// server has not made that yet, it takes a server on loopback and a store that is there.
bool is_on_this_machine(const std::string& address, const std::filesystem::path& artifacts);

}  // namespace mlflow
}  // namespace levin
