#include <levin/loggers/mlflow_sender.h>

#include <levin/loggers/mlflow_artifact_sink.h>
#include <levin/loggers/mlflow_client.h>
#include <levin/loggers/mlflow_records.h>
#include <levin/loggers/mlflow_value_sink.h>

#include <system_error>
#include <thread>
#include <utility>

namespace levin {

MlflowSender::MlflowSender(MlflowSenderOptions options)
    : refused_(std::make_shared<MlflowRefused>(options.run.folder)) {
  const MlflowAccess access = mlflow_access(options.run.tracking_uri, options.stall_seconds);
  options.run.tracking_uri = access.address;
  const std::string folder = options.run.folder;
  const auto run = std::make_shared<MlflowRun>(std::move(options.run));
  BackgroundWorkerOptions worker{.name = "MLflow logger",
                                 .spool = folder + "/unsent",
                                 .later = options.later,
                                 .spool_must_be_free = options.spools_must_be_free,
                                 .memory_bytes = options.memory_bytes / 2};
  values_ = std::make_unique<BackgroundWorker>(worker, std::make_unique<MlflowValueSink>(access, run, refused_));
  worker.name += ", artifacts";
  worker.spool = folder + "/unsent_artifacts";
  artifacts_ = std::make_unique<BackgroundWorker>(worker, std::make_unique<MlflowArtifactSink>(access, run, refused_));
}

void MlflowSender::push(std::string record) noexcept {
  (mlflow::is_artifact(record) ? artifacts_ : values_)->push(std::move(record));
}

void MlflowSender::finish(std::chrono::milliseconds patience) noexcept {
  // Side by side: together they wait no longer than one, and put on disk what they have before they wait.
  std::thread artifacts;
  try {
    artifacts = std::thread([this, patience] { artifacts_->finish(patience); });
  } catch (const std::system_error&) {
    artifacts_->finish({});
  }
  values_->finish(patience);
  if (artifacts.joinable()) artifacts.join();
}

}  // namespace levin
