#include <levin/loggers/mlflow_refused.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>
#include <levin/loggers/mlflow_names.h>

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace levin {

void MlflowRefused::add(std::string_view what, const std::string& reason) {
  const std::string path = folder_ + "/refused.txt";
  const MutexLock lock(mutex_);
  auto& files = FileSystem::current();
  files.create_directories(folder_);
  const auto file = files.open_append(path);
  file->append(fmt::format("{}\t{}\n", reason, what));
  file->close();
  if (count_++ == 0)
    log::warning(fmt::format("MLflow logger: {} is not sent: {}; it and what else is not taken is written to {}",
                             mlflow_text(what, 200), reason, path));
}

void MlflowRefused::add_artifact(const mlflow::Artifact& artifact, const std::string& file, const std::string& reason) {
  namespace fs = std::filesystem;
  const fs::path kept = fs::path(folder_) / "refused" / artifact.path;
  auto& files = FileSystem::current();
  files.create_directories(kept.parent_path().string());
  std::error_code error;
  if (file.empty()) {
    files.replace_file(kept.string(), artifact.bytes);
  } else {
    fs::remove(kept, error);
    // A link to a file elsewhere would last as long as that.
    if (fs::is_symlink(file))
      fs::copy_file(file, kept, error);
    else
      fs::create_hard_link(file, kept, error);
    if (error) throw Error("files", fmt::format("cannot keep {} as {}: {}", file, kept.string(), error.message()));
  }
  add(fmt::format("the artifact {}, kept as {}", artifact.path, kept.string()), reason);
  if (!file.empty()) fs::remove(file, error);
}

}  // namespace levin
