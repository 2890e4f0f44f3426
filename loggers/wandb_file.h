#pragma once

#include <levin/core/base/file_system.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace levin {

/// A `.wandb` file: W&B's header, then messages in LevelDB's log format (blocks of 32 KiB, each record with a CRC-32 of
/// type and data; wandb/sdk/internal/datastore.py). A message is a serialised wandb_internal.Record.
///
/// Every append() reaches the operating system before it returns, so that a process that is killed leaves a file that
/// is readable up to there. An append that fails leaves nothing behind once a later one succeeds.
class WandbFile {
 public:
  /// Goes on with a file that is there, behind its last whole message and without a message that ended the run.
  explicit WandbFile(std::string path);

  /// Throws levin::Error when the disk does not take all of it; then none of it counts.
  void append(std::span<const std::string> messages);
  /// Messages in the file.
  int64_t messages() const { return messages_; }
  /// Rows of metrics among those that were in the file when it was opened.
  int64_t rows_found() const { return rows_found_; }

 private:
  void scan();
  void add_message(std::string& out, std::string_view message) const;

  const std::string path_;
  std::unique_ptr<WritableFile> file_;
  uint64_t size_ = 0;  ///< whole messages, in bytes
  int64_t messages_ = 0;
  int64_t rows_found_ = 0;
};

}  // namespace levin
