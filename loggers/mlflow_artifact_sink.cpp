#include <levin/loggers/mlflow_artifact_sink.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/loggers/mlflow_records.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

namespace levin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArtifactApi = "/api/2.0/mlflow-artifacts/artifacts/";

/// Each part of a path, escaped.
std::string escaped_path(std::string_view path) {
  std::string result;
  for (const auto& part : fs::path(path)) {
    if (part == "/") continue;
    if (!result.empty()) result += '/';
    result += url_escaped(part.string());
  }
  return result;
}

void write(const fs::path& target, const mlflow::Artifact& artifact, const std::string& file) {
  auto& files = FileSystem::current();
  files.create_directories(target.parent_path().string());
  if (file.empty()) {
    files.replace_file(target.string(), artifact.bytes);
    return;
  }
  std::error_code error;
  fs::copy_file(file, target, fs::copy_options::overwrite_existing, error);
  if (error) throw Error("mlflow", fmt::format("cannot write {}: {}", target.string(), error.message()));
}

}  // namespace

bool mlflow::is_on_this_machine(const std::string& address, const fs::path& artifacts) {
  const fs::path run = artifacts.parent_path();
  std::error_code ignored;
  if (fs::is_directory(run, ignored)) return true;
  std::string_view host = std::string_view(address).substr(std::min(address.find("://") + 3, address.size()));
  host = host.substr(0, host.starts_with('[') ? host.find(']') + 1 : host.find_first_of(":/"));
  const bool is_loopback = host == "localhost" || host == "[::1]" || host.starts_with("127.");
  return is_loopback && fs::is_directory(run.parent_path().parent_path(), ignored);
}

MlflowArtifactSink::MlflowArtifactSink(const MlflowAccess& access, std::shared_ptr<MlflowRun> run,
                                       std::shared_ptr<MlflowRefused> refused)
    : client_(access), run_(std::move(run)), refused_(std::move(refused)) {}

size_t MlflowArtifactSink::send(std::span<const std::string> records, const std::atomic<bool>& stop) {
  client_.set_stop(stop);
  const auto artifact = mlflow::artifact_of(records.front());
  if (!artifact) return 0;
  const std::string file = artifact->file.empty() ? "" : (fs::path(run_->folder()) / artifact->file).string();
  std::error_code ignored;
  if (!file.empty() && !fs::exists(file, ignored)) {
    refused_->add("the artifact " + artifact->path, file + " is no longer there");
    fs::remove(file, ignored);  // it may be a link to what was removed
    return 1;
  }
  const std::string root = run_->find_or_make(client_).artifact_uri;
  const std::string refusal = store(root, *artifact, file);
  if (!refusal.empty())
    refused_->add_artifact(*artifact, file, refusal);
  else if (!file.empty())
    fs::remove(file, ignored);
  return 1;
}

std::string MlflowArtifactSink::store(const std::string& root, const mlflow::Artifact& artifact,
                                      const std::string& file) {
  constexpr std::string_view kProxied = "mlflow-artifacts:";
  constexpr std::string_view kLocal = "file://";
  if (root.starts_with(kProxied))
    return store_by_server(std::string_view(root).substr(kProxied.size()), artifact, file);
  if (root.starts_with(kLocal) || root.starts_with('/')) {
    const fs::path folder = root.starts_with(kLocal) ? root.substr(kLocal.size()) : root;
    if (mlflow::is_on_this_machine(client_.address(), folder)) {
      write(folder / artifact.path, artifact, file);
      return "";
    }
  }
  return fmt::format(
      "the server keeps artifacts in '{}', which is not reached through it; hint: start it with "
      "`mlflow server --serve-artifacts`",
      root);
}

std::string MlflowArtifactSink::store_by_server(std::string_view root, const mlflow::Artifact& artifact,
                                                const std::string& file) {
  std::string server = client_.address();
  if (root.starts_with("//")) {
    // A server of its own for artifacts, reached the same way.
    root.remove_prefix(2);
    const size_t end = std::min(root.find('/'), root.size());
    if (end > 0) server = server.substr(0, server.find("//") + 2) + std::string(root.substr(0, end));
    root.remove_prefix(end);
  }
  const HttpResponse response =
      client_.send({.method = "PUT",
                    .url = server + kArtifactApi + escaped_path(root) + "/" + escaped_path(artifact.path),
                    .content_type = "application/octet-stream",
                    .body = std::string(artifact.bytes),
                    .file = file});
  if (response.status == 200 && mlflow::is_answer(response)) return "";
  std::string reason =
      fmt::format("{} answered with status {}: {}", server, response.status, mlflow::message_of(response));
  if (mlflow::refuses(response) || response.status == 404 || response.status == 405) return reason;
  throw Error("mlflow", fmt::format("the artifact {}: {}", artifact.path, reason));
}

}  // namespace levin
