#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

namespace levin {

/// A lock with the name of a file, held by one object at a time, of this process and of all others that see the file.
///
/// It belongs to the process (fcntl): it is gone when the process is, however that ends, and processes forked from it
/// have no part in it, so that none keeps it after its parent's end. The file is empty and stays.
class ProcessLock {
 public:
  /// Takes the lock or finds out who has it; never waits. Makes the file, in a folder that exists. Where the file
  /// cannot be made, or its file system has no locks, this object counts as the holder: there is nobody to ask.
  explicit ProcessLock(const std::string& path);
  ~ProcessLock();
  ProcessLock(const ProcessLock&) = delete;
  ProcessLock& operator=(const ProcessLock&) = delete;

  /// Holder of the lock in place of this object, such as "process 123"; empty when this object has it.
  const std::string& holder() const { return holder_; }

 private:
  /// Device and number of a file.
  using FileId = std::pair<dev_t, ino_t>;
  struct HeldFiles;

  static HeldFiles& held_files();
  void take(const std::string& path, HeldFiles& held);

  std::string holder_;
  int descriptor_ = -1;
  FileId file_{};
  pid_t process_ = 0;  ///< that took it
};

}  // namespace levin
