#include <levin/loggers/process_lock.h>

#include <levin/core/base/mutex.h>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>

namespace levin {
namespace {

struct flock whole_file() {
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  return range;
}

}  // namespace

/// The locks of this process. The kernel tells processes apart, not objects, and it takes a lock back when the process
/// closes any descriptor of the file: so a file that is locked here is not opened again.
struct ProcessLock::HeldFiles {
  Mutex mutex;
  std::set<FileId> files LEVIN_GUARDED_BY(mutex);
  pid_t process LEVIN_GUARDED_BY(mutex) = 0;
};

ProcessLock::HeldFiles& ProcessLock::held_files() {
  static auto* held = new HeldFiles;  // outlives every static object that has a lock
  return *held;
}

ProcessLock::ProcessLock(const std::string& path) : process_(::getpid()) {
  HeldFiles& held = held_files();
  const MutexLock lock(held.mutex);
  if (held.process != process_) {
    held.files.clear();  // of the process that this one was forked from
    held.process = process_;
  }
  take(path, held);
}

void ProcessLock::take(const std::string& path, HeldFiles& held) LEVIN_REQUIRES(held.mutex) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && held.files.contains({status.st_dev, status.st_ino})) {
    holder_ = fmt::format("process {}", process_);
    return;
  }
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) return;
  while (holder_.empty()) {
    struct flock wish = whole_file();
    if (::fcntl(descriptor_, F_SETLK, &wish) == 0) {
      if (::fstat(descriptor_, &status) == 0) held.files.insert(file_ = {status.st_dev, status.st_ino});
      return;
    }
    if (errno != EACCES && errno != EAGAIN) break;
    struct flock other = whole_file();
    if (::fcntl(descriptor_, F_GETLK, &other) != 0) break;
    if (other.l_type == F_UNLCK) continue;  // it was given back this moment
    // Processes of another host or container have no number here.
    holder_ = other.l_pid > 0 ? fmt::format("process {}", other.l_pid) : "a process of another host or container";
  }
  ::close(descriptor_);
  descriptor_ = -1;
}

ProcessLock::~ProcessLock() {
  if (descriptor_ < 0 || process_ != ::getpid()) return;
  HeldFiles& held = held_files();
  const MutexLock lock(held.mutex);
  ::close(descriptor_);
  held.files.erase(file_);
}

}  // namespace levin
