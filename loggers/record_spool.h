#pragma once

#include <levin/core/base/file_system.h>
#include <levin/loggers/process_lock.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace levin {

/// Records that wait on disk, in the order in which they came: a folder of numbered files of some hundred kilobytes,
/// each of them records led by their length and a CRC-32 of both (32 bits each, little-endian). A file is removed when
/// all of its records are done with, so that a process that dies leaves what is still to do, and at most one file's
/// worth twice. A file with a part that is no record (the disk lost it, another version wrote it) gives the records
/// before that part, and is then renamed to NUMBER.unreadable. No number is used twice.
///
/// A folder has one RecordSpool at a time, which locks FOLDER.lock as long as it lives (see ProcessLock). Another one,
/// of this process or any other, uses FOLDER.2, FOLDER.3, ... instead: what is left in these is taken over by the next
/// one that has FOLDER.
///
/// Not for several threads at a time.
class RecordSpool {
 public:
  /// Takes over what an earlier process left in the folder, which is made when there is something to put in it. With
  /// `must_be_free` throws levin::Error "... is being sent by process N" where another RecordSpool has the folder.
  explicit RecordSpool(std::string directory, bool must_be_free = false);

  /// The folder in use.
  const std::string& directory() const { return directory_; }
  bool empty() const { return files_.empty(); }
  int64_t records() const { return records_; }
  int64_t bytes() const { return bytes_; }

  /// Puts records behind all others. Throws levin::Error when the disk does not take them all: to be called again with
  /// the same records, of which some may then be there twice.
  void append(std::span<const std::string> records);
  /// Puts records before all others, into one file.
  void prepend(std::span<const std::string> records);
  /// The oldest records, as many as their file has; later ones go to another file.
  std::vector<std::string> front();
  /// Marks the file that front() reads as one with an unreadable part, which is to be kept.
  void set_front_aside() { files_.front().set_aside = true; }
  /// Removes what front() gives. Returns the new path of a file that is set aside, else nothing.
  std::string pop_front();
  /// Leaves the file that front() reads to a later process.
  void skip_front();

 private:
  struct File {
    int64_t number = 0;
    int64_t records = 0;
    int64_t bytes = 0;  ///< of the records
    bool set_aside = false;
  };

  std::string path_of(int64_t number) const;
  void scan();
  /// A file that is there becomes the last one.
  void take_over(int64_t number);
  void take_over_folders_beside();
  std::unique_ptr<WritableFile> write_file(int64_t number, std::span<const std::string> records) const;
  void count(File& file, std::span<const std::string> records);
  int64_t forget_front();

  std::string directory_;
  std::unique_ptr<ProcessLock> lock_;
  std::deque<File> files_;
  std::unique_ptr<WritableFile> last_;  ///< of files_.back(), while it takes more
  int64_t first_number_;                ///< the first that was ever used, or is
  int64_t next_number_;
  int64_t records_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace levin
