#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/data/json/arrow_rows.h>
#include <levin/core/data/json/row_file.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {

/// Returns the files that patterns of the shell name, `data/*.jsonl.gz`, those of each pattern by name; of a folder
/// that `save_to_disk` of Hugging Face's datasets wrote its data files, in their order. Throws levin::Error where a
/// pattern names none.
std::vector<std::string> find_files(const std::vector<std::string>& patterns);

/// The rows of files of JSON lines, read in any order: an object a line, of files that may be packed by gzip or
/// Zstandard. In memory are names alone; see index_rows. Files that begin as Arrow's do have rows too; see ArrowRows.
/// Thread-safe.
class JsonRows {
 public:
  /// Finds the files and their indices, which are made where they are missing; `cache_folder`: see index_rows. Throws
  /// levin::Error where there are none, and where they have no rows.
  JsonRows(const std::vector<std::string>& patterns, const std::string& cache_folder);

  int64_t size() const { return ends_.back(); }
  /// Returns a row's object. Throws levin::Error naming file and line where it is not JSON, or not an object. Of an
  /// Arrow file lines are numbers of rows, from 1.
  nlohmann::json row(int64_t row) const;
  /// Returns a row's file and line, "data/a.jsonl:17".
  std::string place(int64_t row) const;
  /// Returns what changes where the rows do: files, sizes and times of change.
  std::string version() const;

 private:
  /// A file, and which of its rows a row is.
  struct Place {
    size_t file = 0;
    int64_t row = 0;
  };
  Place find(int64_t row) const;
  std::shared_ptr<const RowFile> open(size_t file) const;

  struct File {
    RowIndex lines = {};                               ///< `path` alone of an Arrow file
    std::shared_ptr<const ArrowRows> arrow = nullptr;  ///< nullptr: of lines
  };
  std::vector<File> files_;
  std::vector<int64_t> ends_;  ///< rows up to the end of each file
  mutable Mutex mutex_;
  /// Those used last, by their places in files_, the newest first: a process may not open as many files as it likes.
  mutable std::list<std::pair<size_t, std::shared_ptr<const RowFile>>> open_ LEVIN_GUARDED_BY(mutex_);
};

/// Rows of which some are held out: every so manieth of `size`, so many in all. The others are those of training.
class RowSelection {
 public:
  enum class Part { kAll, kHeldOut, kOthers };
  RowSelection(int64_t size, int64_t held_out, Part part);

  int64_t size() const { return count_; }
  /// Returns the row of an index, 0 to size() - 1; rows are in order.
  int64_t row(int64_t index) const;

 private:
  int64_t size_;
  int64_t count_;
  Part part_;
};

}  // namespace levin::data
