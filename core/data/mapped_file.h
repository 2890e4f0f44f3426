#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace levin::data {

/// A file mapped into memory for reading; it must not be cut short meanwhile.
class MappedFile {
 public:
  /// Maps a file. Throws levin::Error when it cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace levin::data
