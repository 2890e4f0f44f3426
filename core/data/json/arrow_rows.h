#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace levin::data {

/// Whether a file begins as an Arrow IPC file does, in the form of a stream (as Hugging Face's `datasets` writes them)
/// or of a file.
bool is_arrow_file(const std::string& path);

/// The rows of an Arrow IPC file, read in any order as the objects that the same rows of JSON lines would be. The file
/// is mapped; in memory are 24 bytes for each of its record batches, and a few of these. Values that are null are left
/// out of objects; times and decimals are texts; what JSON does not have (bytes, unions) is left out, as a message
/// says. Thread-safe.
class ArrowRows {
 public:
  /// Throws levin::Error where the file is damaged or cut short, and where this Levin was built without Arrow
  /// (LEVIN_PARQUET).
  explicit ArrowRows(const std::string& path);
  ~ArrowRows();
  ArrowRows(const ArrowRows&) = delete;
  ArrowRows& operator=(const ArrowRows&) = delete;

  int64_t size() const;
  /// Throws levin::Error naming the file and the number of the row, from 1, where it is damaged.
  nlohmann::json row(int64_t row) const;

 private:
  class File;
  std::unique_ptr<const File> file_;
};

}  // namespace levin::data
