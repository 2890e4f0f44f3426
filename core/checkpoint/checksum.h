#pragma once

#include <levin/core/base/file_system.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace levin {

/// The streaming XXH3-128 hash of a sequence of bytes.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void update(const void* data, size_t size);
  /// Returns 32 lower-case hexadecimal digits, most significant first, as `xxh128sum` prints them.
  std::string hex() const;

 private:
  XXH3_state_s* state_;
};

/// Returns the checksum of bytes in memory.
std::string checksum_of(std::string_view bytes);

/// Size and checksum of a file, as in a manifest.
struct FileSummary {
  uint64_t size = 0;     ///< in bytes
  std::string checksum;  ///< Checksum::hex
  bool operator==(const FileSummary&) const = default;
};

/// Summarizes a whole file. Throws levin::Error when it cannot be read.
FileSummary summarize_file(const std::string& path);

/// A file being written that is summarized on the way, so that nothing has to be read again.
class ChecksumFile final : public WritableFile {
 public:
  explicit ChecksumFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}

  using WritableFile::append;
  void append(const void* data, size_t size) override;
  void flush() override { file_->flush(); }
  void sync() override { file_->sync(); }
  void close() override { file_->close(); }

  /// Returns the summary of everything appended so far.
  FileSummary summary() const { return {size_, checksum_.hex()}; }

 private:
  std::unique_ptr<WritableFile> file_;
  Checksum checksum_;
  uint64_t size_ = 0;
};

}  // namespace levin
