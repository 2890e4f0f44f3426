#include <levin/core/base/file_system.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>

namespace levin {
namespace {

std::string error_text(int error) { return std::generic_category().message(error); }

[[noreturn]] void throw_file_error(std::string_view action, const std::string& path, int error) {
  throw Error("files", fmt::format("cannot {} {}: {}", action, path, error_text(error)));
}

/// A call that a signal interrupted is made again.
template <class Call>
auto retry_interrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

/// A file beyond `ulimit -f` is then an error of the write (EFBIG) and not the end of the process.
void ignore_file_size_signal() {
  struct sigaction action {};
  if (::sigaction(SIGXFSZ, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) ::signal(SIGXFSZ, SIG_IGN);
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, int flags)
      : path_(std::move(path)),
        descriptor_(retry_interrupted([&] { return ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666); })) {
    if (!descriptor_.is_open()) throw_file_error("write", path_, errno);
    static std::once_flag once;
    std::call_once(once, ignore_file_size_signal);
  }

  ~PosixWritableFile() override { write_buffer(); }

  using WritableFile::append;

  void append(const void* data, size_t size) override {
    if (size == 0) return;  // an empty tensor may have no address
    if (size <= buffer_.size() - used_) {
      std::memcpy(buffer_.data() + used_, data, size);
      used_ += size;
      return;
    }
    check(write_buffer());
    if (size >= buffer_.size()) {
      check(write_directly(static_cast<const char*>(data), size));
      return;
    }
    std::memcpy(buffer_.data(), data, size);
    used_ = size;
  }

  void flush() override { check(write_buffer()); }

  void sync() override {
    flush();
    // A pipe or a character device has nothing to wait for and says EINVAL.
    if (::fsync(descriptor_.number()) != 0 && errno != EINVAL) {
      failure_ = errno;
      check(failure_);
    }
  }

  void close() override {
    const int written = write_buffer();
    // Linux has freed the number even when this fails, so that it must not be closed again.
    const int closed = descriptor_.is_open() && ::close(descriptor_.release()) != 0 && errno != EINTR ? errno : 0;
    check(written);
    check(closed);
  }

 private:
  void check(int error) const {
    if (error != 0) throw_file_error("write", path_, error);
  }

  /// Returns errno, or 0.
  int write_buffer() {
    const size_t size = used_;
    used_ = 0;
    return write_directly(buffer_.data(), size);
  }

  int write_directly(const char* data, size_t size) {
    while (size > 0 && failure_ == 0) {
      const ssize_t written = retry_interrupted([&] { return ::write(descriptor_.number(), data, size); });
      if (written < 0) {
        failure_ = errno;
      } else {
        data += written;
        size -= static_cast<size_t>(written);
      }
    }
    return failure_;
  }

  const std::string path_;
  Descriptor descriptor_;
  int failure_ = 0;  ///< errno of the first failure
  size_t used_ = 0;
  std::array<char, 64 * 1024> buffer_;
};

std::atomic<FileSystem*> replaced_file_system = nullptr;

}  // namespace

Descriptor open_regular_file(const std::string& path, std::string_view component) {
  const auto fail = [&](const std::string& why) {
    return Error(std::string(component), fmt::format("cannot read {}: {}", path, why));
  };
  // Without O_NONBLOCK, opening a pipe waits for its writer.
  Descriptor file(retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.number(), &status) != 0) throw fail(error_text(errno));
  if (S_ISDIR(status.st_mode)) throw fail(error_text(EISDIR));
  if (!S_ISREG(status.st_mode)) throw fail("it is a pipe or a device; valid: a regular file");
  return file;
}

std::unique_ptr<WritableFile> FileSystem::create(const std::string& path) {
  struct stat status {};
  const bool is_there = ::lstat(path.c_str(), &status) == 0;
  const bool is_file = S_ISREG(status.st_mode) || S_ISLNK(status.st_mode);
  if (is_there && !is_file) return std::make_unique<PosixWritableFile>(path, O_NOFOLLOW);  // a pipe, a terminal
  if (is_there) ::unlink(path.c_str());
  return std::make_unique<PosixWritableFile>(path, O_CREAT | O_EXCL | O_NOFOLLOW);
}

std::unique_ptr<WritableFile> FileSystem::open_append(const std::string& path) {
  return std::make_unique<PosixWritableFile>(path, O_CREAT | O_APPEND);
}

void FileSystem::replace_file(const std::string& path, const std::function<void(WritableFile&)>& write) {
  const std::string unfinished = path + ".unfinished";
  try {
    const auto file = create(unfinished);
    write(*file);
    file->close();
    rename(unfinished, path);
  } catch (...) {
    ::unlink(unfinished.c_str());
    throw;
  }
}

void FileSystem::replace_file(const std::string& path, std::string_view content) {
  replace_file(path, [&](WritableFile& file) { file.append(content); });
}

void FileSystem::create_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw_file_error("create directory", path, error.value());
}

bool FileSystem::create_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return true;
  if (errno == EEXIST) return false;
  throw_file_error("create directory", path, errno);
}

void FileSystem::rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    throw Error("files", fmt::format("cannot rename {} to {}: {}", from, to, error_text(error)));
  }
}

void FileSystem::exchange(const std::string& a, const std::string& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return;
  const int error = errno;
  // A kernel without the call, or a file system (NFS, some overlays) without the flag.
  if (error == ENOSYS || error == EINVAL || error == EOPNOTSUPP) {
    exchange_by_renames(a, b);
    return;
  }
  throw Error("files", fmt::format("cannot exchange {} and {}: {}", a, b, error_text(error)));
}

void FileSystem::exchange_by_renames(const std::string& a, const std::string& b) {
  const std::string aside = fmt::format("{}.exchange.{}", b, ::getpid());
  rename(b, aside);
  try {
    rename(a, b);
  } catch (const Error&) {
    rename(aside, b);
    throw;
  }
  rename(aside, a);
}

void FileSystem::remove_all(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_file_error("remove", path, error.value());
}

void FileSystem::sync_directory(const std::string& path) {
  const Descriptor directory(
      retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!directory.is_open()) throw_file_error("sync directory", path, errno);
  // Some file systems cannot sync a directory and say EINVAL; there is nothing more to do there.
  if (::fsync(directory.number()) != 0 && errno != EINVAL) throw_file_error("sync directory", path, errno);
}

std::string FileSystem::read_file(const std::string& path) const {
  const Descriptor file = open_regular_file(path);
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) throw_file_error("read", path, errno);

  // The size is a hint only: the file may grow, and files in /proc say 0. One byte more finds the end without growing.
  std::string content(static_cast<size_t>(status.st_size) + 1, '\0');
  size_t used = 0;
  while (true) {
    const ssize_t count =
        retry_interrupted([&] { return ::read(file.number(), content.data() + used, content.size() - used); });
    if (count < 0) throw_file_error("read", path, errno);
    if (count == 0) break;
    used += static_cast<size_t>(count);
    if (used == content.size()) content.resize(std::max<size_t>(4096, content.size() * 2));
  }
  content.resize(used);
  return content;
}

bool FileSystem::exists(const std::string& path) const {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::vector<std::string> FileSystem::list(const std::string& path) const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  while (!error && entry != std::filesystem::directory_iterator()) {
    names.push_back(entry->path().filename().string());
    entry.increment(error);
  }
  if (error) throw_file_error("list", path, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

FileSystem& FileSystem::current() {
  static FileSystem real;
  FileSystem* replaced = replaced_file_system.load(std::memory_order_acquire);
  return replaced != nullptr ? *replaced : real;
}

void FileSystem::replace(FileSystem* replacement) {
  replaced_file_system.store(replacement, std::memory_order_release);
}

}  // namespace levin
