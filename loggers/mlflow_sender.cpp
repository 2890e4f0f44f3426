#include <levin/loggers/mlflow_sender.h>

#include <levin/loggers/mlflow_artifact_sink.h>
#include <levin/loggers/mlflow_client.h>
#include <levin/loggers/mlflow_records.h>
#include <levin/loggers/mlflow_value_sink.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

MlflowSender::MlflowSender(MlflowSenderOptions options)
    : refused_(std::make_shared<MlflowRefused>(options.run.folder)) {
  const MlflowAccess access = mlflow_access(options.run.tracking_uri, options.stall_seconds);
  options.run.tracking_uri = access.address;
  const std::string folder = options.run.folder;
  const auto run = std::make_shared<MlflowRun>(std::move(options.run));
  BackgroundWorkerOptions worker{.name = "MLflow logger",
                                 .spool = folder + "/unsent",
                                 .later = options.later,
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
  const auto end = Clock::now() + patience;
  values_->finish(patience);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  artifacts_->finish(std::max(left, std::chrono::milliseconds(0)));
}

}  // namespace levin
