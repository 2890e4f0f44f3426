#pragma once

#include <levin/core/base/descriptor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// A file being written, through a buffer. Every call throws levin::Error "[files] cannot write PATH: No space left on
/// device" on failure; a file that failed once stays failed, so that one with a hole in it is never taken for whole.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void append(const void* data, size_t size) = 0;
  void append(std::string_view text) { append(text.data(), text.size()); }
  /// Hands buffered bytes to the operating system.
  virtual void flush() = 0;
  /// Flushes and waits until the bytes are on the disk.
  virtual void sync() = 0;
  /// Flushes and closes; the destructor closes without reporting errors.
  virtual void close() = 0;
};

/// Opens a regular file for reading. Whatever else has that name is an error of `component`: a folder, and pipes and
/// devices, which may have no end or never begin.
Descriptor open_regular_file(const std::string& path, std::string_view component = "files");

/// The file operations of checkpoints and loggers, in one place so that tests can make them fail.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Makes a new file. A file or a link of that name is removed first, so that nothing is written through a link that
  /// somebody else has put there.
  virtual std::unique_ptr<WritableFile> create(const std::string& path);
  virtual std::unique_ptr<WritableFile> open_append(const std::string& path);
  /// Has a file written beside `path` and renames it, so that nobody ever sees half of it. When that fails, what was
  /// there stays, and nothing is left beside it.
  void replace_file(const std::string& path, const std::function<void(WritableFile&)>& write);
  void replace_file(const std::string& path, std::string_view content);
  /// Makes a directory and its missing parents.
  virtual void create_directories(const std::string& path);
  /// Makes one directory, atomically; returns false when the name is taken.
  virtual bool create_directory(const std::string& path);
  virtual void rename(const std::string& from, const std::string& to);
  /// Swaps two existing paths at once, so that each name always leads to something whole. On a file system that cannot,
  /// it falls back to exchange_by_renames.
  virtual void exchange(const std::string& a, const std::string& b);
  virtual void remove_all(const std::string& path);
  /// Waits until a directory's entries are on the disk.
  virtual void sync_directory(const std::string& path);
  /// Returns what is in a regular file.
  std::string read_file(const std::string& path) const;
  bool exists(const std::string& path) const;
  /// Returns the names (not paths) in a directory, sorted; empty when there is no such directory.
  std::vector<std::string> list(const std::string& path) const;

  /// Returns the file system in use. Tests replace it; nullptr restores the real one.
  static FileSystem& current();
  static void replace(FileSystem* replacement);

 protected:
  /// Swaps two paths by renaming `b` aside, `a` to `b`, and what was `b` to `a`. Between the first two steps nothing
  /// has the name `b`; when the second fails, the first is undone.
  void exchange_by_renames(const std::string& a, const std::string& b);
};

}  // namespace levin
