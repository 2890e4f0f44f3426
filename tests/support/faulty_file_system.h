#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace levin::testing {

/// The real file system until a given number of bytes or operations, and from there on one that fails, as a full disk
/// or a broken share does. In use (FileSystem::current()) as long as it lives.
///
///     FaultyFileSystem files;
///     files.fail_after_bytes(1000);         // the append that crosses 1000 bytes writes what fits, then throws
///     files.fail_after_operations(3, EIO);  // the fourth call from now throws
///     files.heal();
///
/// To stop a piece of code at every point: run it once to learn operations(), then once with
/// fail_after_operations(0), (1), ... Reading never fails.
class FaultyFileSystem : public FileSystem {
 public:
  FaultyFileSystem() { FileSystem::replace(this); }
  ~FaultyFileSystem() override { FileSystem::replace(nullptr); }
  FaultyFileSystem(const FaultyFileSystem&) = delete;
  FaultyFileSystem& operator=(const FaultyFileSystem&) = delete;

  /// Files take `count` more bytes. Whether a byte is buffered makes no difference.
  void fail_after_bytes(int64_t count, int error = ENOSPC) {
    bytes_left_ = count;
    error_ = error;
  }
  /// `count` more calls that change anything (append, flush, sync and close included) go through.
  void fail_after_operations(int64_t count, int error = ENOSPC) {
    operations_left_ = count;
    error_ = error;
  }
  /// The same, but only one call throws.
  void fail_once_after_operations(int64_t count, int error) {
    fail_after_operations(count, error);
    fails_once_ = true;
  }
  void heal() {
    bytes_left_ = std::numeric_limits<int64_t>::max();
    operations_left_ = std::numeric_limits<int64_t>::max();
    fails_once_ = false;
  }

  /// Operations tried so far, the failed ones included.
  int64_t operations() const { return operations_; }
  /// Operations that failed.
  int64_t faults() const { return faults_; }

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    operation("write", path);
    return std::make_unique<File>(*this, path, FileSystem::create(path));
  }
  std::unique_ptr<WritableFile> open_append(const std::string& path) override {
    operation("write", path);
    return std::make_unique<File>(*this, path, FileSystem::open_append(path));
  }
  void create_directories(const std::string& path) override {
    operation("create directory", path);
    FileSystem::create_directories(path);
  }
  bool create_directory(const std::string& path) override {
    operation("create directory", path);
    return FileSystem::create_directory(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    operation("rename", from);
    FileSystem::rename(from, to);
  }
  void exchange(const std::string& a, const std::string& b) override {
    operation("exchange", a);
    FileSystem::exchange(a, b);
  }
  void remove_all(const std::string& path) override {
    operation("remove", path);
    FileSystem::remove_all(path);
  }
  void sync_directory(const std::string& path) override {
    operation("sync directory", path);
    FileSystem::sync_directory(path);
  }

 private:
  class File : public WritableFile {
   public:
    File(FaultyFileSystem& owner, std::string path, std::unique_ptr<WritableFile> file)
        : owner_(owner), path_(std::move(path)), file_(std::move(file)) {}

    using WritableFile::append;

    void append(const void* data, size_t size) override {
      owner_.operation("write", path_);
      const int64_t accepted = std::min(owner_.bytes_left_.load(), static_cast<int64_t>(size));
      file_->append(data, static_cast<size_t>(accepted));
      if (owner_.bytes_left_ != std::numeric_limits<int64_t>::max()) owner_.bytes_left_ -= accepted;
      if (accepted < static_cast<int64_t>(size)) owner_.fail("write", path_);
    }
    void flush() override {
      owner_.operation("write", path_);
      file_->flush();
    }
    void sync() override {
      owner_.operation("write", path_);
      file_->sync();
    }
    void close() override {
      owner_.operation("write", path_);
      file_->close();
    }

   private:
    FaultyFileSystem& owner_;
    const std::string path_;
    const std::unique_ptr<WritableFile> file_;
  };

  void operation(std::string_view action, const std::string& path) {
    ++operations_;
    if (operations_left_ == 0) fail(action, path);
    if (operations_left_ != std::numeric_limits<int64_t>::max()) --operations_left_;
  }

  [[noreturn]] void fail(std::string_view action, const std::string& path) {
    ++faults_;
    if (fails_once_) heal();
    throw Error("files", "cannot " + std::string(action) + " " + path + ": " + std::generic_category().message(error_));
  }

  // A thread that saves may be at work while a test sets them.
  std::atomic<int64_t> bytes_left_ = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> operations_left_ = std::numeric_limits<int64_t>::max();
  std::atomic<bool> fails_once_ = false;
  std::atomic<int> error_ = ENOSPC;
  std::atomic<int64_t> operations_ = 0;
  std::atomic<int64_t> faults_ = 0;
};

}  // namespace levin::testing
