#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace levin::data {

/// The bytes of a file from its beginning, unpacked where gzip or Zstandard packed them, which its first bytes say.
class TextStream {
 public:
  /// Opens a file. Throws levin::Error where it cannot be read.
  explicit TextStream(const std::string& path);
  ~TextStream();
  TextStream(const TextStream&) = delete;
  TextStream& operator=(const TextStream&) = delete;

  /// Reads up to `size` bytes into `bytes`; returns how many, 0 at the end. Throws levin::Error naming the file where
  /// packed bytes are damaged or cut off.
  size_t read(char* bytes, size_t size);
  /// Returns whether the file is packed.
  bool is_packed() const;

 private:
  class Source;
  class Plain;
  class Gzip;
  class Zstandard;
  std::unique_ptr<Source> source_;
};

}  // namespace levin::data
