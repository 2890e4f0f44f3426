#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace levin {

/// A file's bytes in memory, fetched from the disk as they are touched. Writing changes a private copy, never the file.
class MappedBytes {
 public:
  /// Throws levin::Error when the file cannot be read or mapped.
  explicit MappedBytes(const std::string& path);
  ~MappedBytes();
  MappedBytes(const MappedBytes&) = delete;
  MappedBytes& operator=(const MappedBytes&) = delete;

  char* data() const { return data_; }
  uint64_t size() const { return size_; }
  /// Whether `pointer` is an address of the mapping.
  bool contains(const void* pointer) const;

 private:
  char* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace levin
