#pragma once

#include <levin/core/base/file_system.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace levin {

/// Records that wait on disk, in the order in which they came: a folder of numbered files of some hundred kilobytes,
/// each of them records led by their length (32 bits, little-endian). A file is removed when all of its records are
/// done with, so that a process that dies leaves what is still to do, and at most one file's worth twice.
///
/// Not for several threads or processes at a time.
class RecordSpool {
 public:
  /// Takes over what an earlier process left in the folder. The folder is made when there is something to put in it.
  explicit RecordSpool(std::string directory);

  const std::string& directory() const { return directory_; }
  bool empty() const { return files_.empty(); }
  int64_t records() const { return records_; }
  int64_t bytes() const { return bytes_; }

  /// Puts records behind all others. Throws levin::Error when the disk does not take them all: to be called again with
  /// the same records, of which some may then be there twice.
  void append(std::span<const std::string> records);
  /// Puts records before all others.
  void prepend(std::span<const std::string> records);
  /// The oldest records, as many as their file has; later ones go to another file.
  std::vector<std::string> front();
  /// Removes what front() gives.
  void pop_front();
  /// Leaves the file to a later process.
  void skip_front();

 private:
  struct File {
    int64_t number = 0;
    int64_t records = 0;
    int64_t bytes = 0;
  };

  std::string path_of(int64_t number) const;
  void write(WritableFile& file, std::span<const std::string> records) const;
  void count(File& file, std::span<const std::string> records);
  int64_t forget_front();

  const std::string directory_;
  std::deque<File> files_;
  std::unique_ptr<WritableFile> last_;  ///< of files_.back(), while it takes more
  int64_t next_number_ = 0;
  int64_t records_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace levin
