#pragma once

#include <levin/core/base/descriptor.h>
#include <levin/core/base/mutex.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace levin::data {

/// Where the rows of a file of lines are: a row is a line that is not blank.
struct RowIndex {
  std::string path = {};    ///< the file of lines
  std::string index = {};   ///< the file of places, see RowFile
  std::string blocks = {};  ///< its rows in blocks that are packed separately, of a packed file; else empty
  int64_t rows = 0;
};

/// Returns the index of a file of lines, made where there is none or the file has changed since: `.NAME.rows` beside
/// it, else, where that place cannot be written, in `cache_folder`. Of a file that gzip or Zstandard packed, whose rows
/// could not be read out of order, the index has a copy beside it, `.NAME.blocks`, of about the packed size. In memory
/// are some MB, whatever the file's size. Throws levin::Error where the file cannot be read or no place can be written.
RowIndex index_rows(const std::string& path, const std::string& cache_folder);

/// The rows of an indexed file, read in any order. Thread-safe.
class RowFile {
 public:
  /// Longest row that is read.
  static constexpr int64_t kMostBytes = int64_t{1} << 28;

  /// Opens the files of an index. Throws levin::Error where they cannot be read.
  explicit RowFile(RowIndex index);

  const std::string& path() const { return index_.path; }
  int64_t size() const { return index_.rows; }
  /// Returns a row, without the line's end. Throws levin::Error where the file has become shorter.
  std::string read(int64_t row) const;
  /// Returns the number of a row's line, from 1.
  int64_t line(int64_t row) const;

  /// Of a row, as the index has it.
  struct Place {
    int64_t offset = 0;   ///< of its first byte in the file; of a packed file that of its block in the blocks
    uint32_t within = 0;  ///< of its first byte in the unpacked block
    uint32_t length = 0;  ///< bytes
    int64_t line = 0;     ///< from 1
  };

 private:
  Place place(int64_t row) const;
  std::shared_ptr<const std::string> block(int64_t offset) const;

  RowIndex index_;
  Descriptor places_;
  Descriptor text_;  ///< the lines, or their blocks
  mutable Mutex mutex_;
  /// The block that was read last, by its offset.
  mutable std::pair<int64_t, std::shared_ptr<const std::string>> last_ LEVIN_GUARDED_BY(mutex_) = {-1, nullptr};
};

}  // namespace levin::data
