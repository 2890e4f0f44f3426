#include <levin/core/checkpoint/checkpoint_uploader.h>

#include <levin/core/base/log.h>
#include <levin/core/checkpoint/checkpoint_info.h>
#include <levin/core/checkpoint/manifest.h>
#include <levin/core/checkpoint/remote_checkpoint.h>

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

std::string name_of(const std::string& path) { return std::filesystem::path(path).filename().string(); }

/// Fills a folder with a checkpoint's files. A saved checkpoint's files are never written to again.
void link_files(const std::string& checkpoint, const std::string& folder) {
  std::vector<std::string> names{kManifestFile};
  for (const auto& file : read_manifest(checkpoint).files) names.push_back(file.first);
  for (const std::string& name : names) {
    std::error_code error;
    std::filesystem::create_hard_link(checkpoint + "/" + name, folder + "/" + name, error);
    if (error) std::filesystem::copy_file(checkpoint + "/" + name, folder + "/" + name);
  }
}

}  // namespace

CheckpointUploader::CheckpointUploader(const std::string& url, ObjectStoreOptions options)
    : folder_(parse_remote_url(url, "upload_to")), store_(folder_, std::move(options)) {}

CheckpointUploader::~CheckpointUploader() { finish(); }

void CheckpointUploader::add(const std::string& path, const std::string& superseded) noexcept {
  add(path, superseded, /*only_newer=*/false);
}

void CheckpointUploader::add_missing(const std::string& path) noexcept { add(path, "", /*only_newer=*/true); }

void CheckpointUploader::add(const std::string& path, const std::string& superseded, bool only_newer) noexcept {
  try {
    Job job{.name = name_of(path),
            .files = std::make_unique<PendingDirectory>(path + ".upload"),
            .superseded = {},
            .only_newer = only_newer};
    link_files(path, job.files->path());
    if (!superseded.empty()) job.superseded.push_back(name_of(superseded));
    const MutexLock lock(mutex_);
    // What waits and is of no use any more is left out; what it supersedes is superseded now.
    for (auto other = jobs_.begin(); other != jobs_.end();) {
      const bool is_superseded = other->name == job.name || other->name == name_of(superseded);
      if (!is_superseded || &*other == working_) {
        ++other;
        continue;
      }
      for (std::string& name : other->superseded) job.superseded.push_back(std::move(name));
      other = jobs_.erase(other);
    }
    std::erase(job.superseded, job.name);
    jobs_.push_back(std::move(job));
    is_due_ = true;
    is_over_ = false;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_all();
  } catch (const std::exception& error) {
    log::warning(fmt::format("the checkpoint {} is not uploaded to {}: {}", path, folder_.text(), error.what()));
  }
}

void CheckpointUploader::finish() noexcept {
  try {
    {
      const MutexLock lock(mutex_);
      is_over_ = true;
      if (!jobs_.empty())
        log::info(fmt::format("waiting until {} uploaded to {}",
                              jobs_.size() == 1 ? "a checkpoint is" : fmt::format("{} checkpoints are", jobs_.size()),
                              folder_.text()));
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    const MutexLock lock(mutex_);
    if (jobs_.empty()) return;
    std::set<std::string> names;  // of one that was under way while the next came there are two
    for (const Job& job : jobs_)
      if (!job.is_uploaded) names.insert(job.name);
    if (!names.empty())
      log::warning(fmt::format("not uploaded to {}: {}", folder_.text(),
                               join(std::vector<std::string>(names.begin(), names.end()))));
    jobs_.clear();
  } catch (const std::exception& error) {
    log::warning(error.what());
  }
}

void CheckpointUploader::run() {
  // Signals are for the thread that trains.
  sigset_t signals;
  sigfillset(&signals);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this]() LEVIN_REQUIRES(mutex_) { return is_due_ || is_over_; });
    const bool is_last = is_over_;
    is_due_ = false;
    bool is_away = false;
    for (auto job = jobs_.begin(); job != jobs_.end() && !is_away;) {
      working_ = &*job;
      lock.unlock();
      const std::string problem = perform(*job, is_away);
      lock.lock();
      working_ = nullptr;
      if (problem.empty()) {
        job = jobs_.erase(job);
        continue;
      }
      log::warning(fmt::format("{} {} could not be {}{}: {}",
                               job->is_uploaded ? "what is superseded by the checkpoint" : "the checkpoint", job->name,
                               job->is_uploaded ? "removed" : "uploaded",
                               is_over_ ? "" : ", which is tried again at the next save", problem));
      // A newer one of this name, or one that supersedes it, came meanwhile: tried again later, this would replace it.
      const auto takes_its_place = [&](const Job& other) {
        return &other != &*job &&
               (other.name == job->name ||
                std::find(other.superseded.begin(), other.superseded.end(), job->name) != other.superseded.end());
      };
      const auto later = std::find_if(std::next(job), jobs_.end(), takes_its_place);
      if (later == jobs_.end()) {
        ++job;
        continue;
      }
      for (const std::string& name : job->superseded)
        if (name != later->name) later->superseded.push_back(name);
      job = jobs_.erase(job);
    }
    if (is_last && !is_due_) return;
  }
}

std::string CheckpointUploader::perform(Job& job, bool& is_away) {
  try {
    const auto upload = job.only_newer ? upload_newer_checkpoint : upload_checkpoint;
    if (!job.is_uploaded) upload(store_, folder_, job.name, job.files->path());
    job.is_uploaded = true;
    for (const std::string& name : job.superseded) remove_superseded(name);
    return "";
  } catch (const std::exception& error) {
    is_away = dynamic_cast<const StoreUnavailable*>(&error) != nullptr;
    return error.what();
  }
}

/// A refusal is not tried again.
void CheckpointUploader::remove_superseded(const std::string& name) {
  try {
    remove_remote_checkpoint(store_, folder_, name);
  } catch (const StoreUnavailable&) {
    throw;
  } catch (const Error& error) {
    log::warning_once(fmt::format("superseded checkpoints stay in the store: {}", error.what()));
  }
}

void check_remote_folder(const std::string& url) {
  const RemoteUrl folder = parse_remote_url(url, "upload_to");
  try {
    ObjectStore(folder).folders(folder.key, /*first_only=*/true);
  } catch (const StoreUnavailable& error) {
    log::warning(fmt::format("checkpoints are kept here until the store answers: {}", error.what()));
  }
}

}  // namespace levin
