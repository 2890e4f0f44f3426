#pragma once

#include <levin/core/base/descriptor.h>

#include <cstdint>
#include <string>

namespace levin {

/// A file opened for reading at any offset. Not memory-mapped, so that a file cut short while it is read is an error
/// and not a signal.
class InputFile {
 public:
  /// Throws levin::Error "[checkpoint] cannot read PATH: No such file or directory".
  explicit InputFile(const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }

  /// Reads exactly `size` bytes; throws levin::Error when the file ends before. Safe to call from several threads.
  void read(uint64_t offset, void* data, size_t size) const;

 private:
  std::string path_;
  Descriptor descriptor_;
  uint64_t size_ = 0;
};

}  // namespace levin
