#include <levin/core/checkpoint/pending_directory.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/log.h>

#include <fmt/format.h>

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

namespace levin {
namespace {

constexpr std::string_view kMark = ".tmp-";

/// The temporary folders that this process fills at the moment: those of its process id that are not among them come
/// from a process that had the same id before, as in a container that was started again.
class OpenFolders {
 public:
  static OpenFolders& instance() {
    static OpenFolders folders;
    return folders;
  }
  void add(const std::string& path) {
    const std::lock_guard lock(mutex_);
    paths_.insert(path);
  }
  void remove(const std::string& path) {
    const std::lock_guard lock(mutex_);
    paths_.erase(path);
  }
  bool contains(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return paths_.contains(path);
  }

 private:
  std::mutex mutex_;
  std::set<std::string> paths_;
};

/// The process id in the name of a temporary folder.
std::optional<pid_t> writer_of(std::string_view name) {
  const size_t mark = name.rfind(kMark);
  if (!name.starts_with('.') || mark == std::string_view::npos) return {};
  const std::string_view numbers = name.substr(mark + kMark.size());
  pid_t process = 0;
  const auto parsed = std::from_chars(numbers.data(), numbers.data() + numbers.size(), process);
  if (parsed.ec != std::errc() || parsed.ptr == numbers.data() + numbers.size() || *parsed.ptr != '-') return {};
  return process > 0 ? std::optional(process) : std::nullopt;
}

void remove_leftovers(FileSystem& files, const std::string& parent) {
  for (const auto& name : files.list(parent)) {
    const auto writer = writer_of(name);
    const std::string path = parent + "/" + name;
    if (!writer || OpenFolders::instance().contains(path)) continue;
    const bool is_dead = *writer == ::getpid() || (::kill(*writer, 0) != 0 && errno == ESRCH);
    if (!is_dead) continue;
    try {
      files.remove_all(path);
    } catch (const Error& error) {
      log::warning_once(fmt::format("cannot remove what an interrupted save left behind: {}", error.what()));
    }
  }
}

}  // namespace

PendingDirectory::PendingDirectory(const std::string& final_path) {
  std::filesystem::path path = std::filesystem::path(final_path).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename().string();
  if (name.empty() || name == "." || name == "..")
    throw Error("files",
                fmt::format("cannot write a folder at '{}'; valid: a path that ends with its name", final_path));
  parent_ = path.has_parent_path() ? path.parent_path().string() : ".";
  final_path_ = path.string();

  FileSystem& files = FileSystem::current();
  if (!files.exists(parent_)) files.create_directories(parent_);
  remove_leftovers(files, parent_);
  static std::atomic<int64_t> counter = 0;
  // Entered before it exists, lest another thread of this process takes it for a leftover.
  do {
    path_ = fmt::format("{}/.{}{}{}-{}", parent_, name, kMark, ::getpid(), counter++);
    OpenFolders::instance().add(path_);
  } while (!files.create_directory(path_));
}

PendingDirectory::~PendingDirectory() {
  try {
    FileSystem& files = FileSystem::current();
    if (files.exists(path_)) files.remove_all(path_);
  } catch (const Error& error) {
    log::warning(fmt::format("cannot remove a folder that is no longer needed: {}", error.what()));
  }
  OpenFolders::instance().remove(path_);
}

void PendingDirectory::commit() {
  FileSystem::current().sync_directory(path_);
  put_in_place();
}

void PendingDirectory::put_in_place() {
  FileSystem& files = FileSystem::current();
  const bool replaces = files.exists(final_path_);
  if (replaces)
    files.exchange(path_, final_path_);
  else
    files.rename(path_, final_path_);
  try {
    files.sync_directory(parent_);
  } catch (const Error&) {
    // The new folder may not survive a power cut, so the save has failed and the old one goes back.
    if (replaces)
      files.exchange(path_, final_path_);
    else
      files.rename(final_path_, path_);
    throw;
  }
}

}  // namespace levin
