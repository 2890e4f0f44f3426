#include <levin/core/base/file_system.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
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

/// An open file descriptor, closed when it goes out of scope.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  int get() const { return value_; }
  /// Returns errno, or 0. Linux has freed the descriptor even when close() fails, so it must not be closed again.
  int close() {
    if (value_ < 0) return 0;
    const int result = ::close(value_);
    value_ = -1;
    return result == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int value_;
};

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, int flags)
      : path_(std::move(path)),
        descriptor_(
            retry_interrupted([&] { return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666); })) {
    if (descriptor_.get() < 0) throw_file_error("write", path_, errno);
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
    if (::fsync(descriptor_.get()) != 0 && errno != EINVAL) {
      failure_ = errno;
      check(failure_);
    }
  }

  void close() override {
    const int written = write_buffer();
    const int closed = descriptor_.close();
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
      const ssize_t written = retry_interrupted([&] { return ::write(descriptor_.get(), data, size); });
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

std::unique_ptr<WritableFile> FileSystem::create(const std::string& path) {
  return std::make_unique<PosixWritableFile>(path, O_TRUNC);
}

std::unique_ptr<WritableFile> FileSystem::open_append(const std::string& path) {
  return std::make_unique<PosixWritableFile>(path, O_APPEND);
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
  if (directory.get() < 0) throw_file_error("sync directory", path, errno);
  // Some file systems cannot sync a directory and say EINVAL; there is nothing more to do there.
  if (::fsync(directory.get()) != 0 && errno != EINVAL) throw_file_error("sync directory", path, errno);
}

std::string FileSystem::read_file(const std::string& path) const {
  const Descriptor file(retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) throw_file_error("read", path, errno);

  // The size is a hint only: the file may grow, and files in /proc say 0. One byte more finds the end without growing.
  std::string content(static_cast<size_t>(status.st_size) + 1, '\0');
  size_t used = 0;
  while (true) {
    const ssize_t count =
        retry_interrupted([&] { return ::read(file.get(), content.data() + used, content.size() - used); });
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
