#pragma once

#include <levin/core/base/descriptor.h>

#include <string>

namespace levin {

/// A folder that is filled beside its final place and takes that place at once: readers find, after a crash too, either
/// what was there before or the whole new folder.
///
/// While it is filled its name is `.NAME.tmp-KERNEL-PID-N`, and its writer has its lock (flock). Such folders that
/// processes on the same machine left behind when they died are removed first, those of other machines (KERNEL tells)
/// after a day without a change.
class PendingDirectory {
 public:
  /// Makes the temporary folder, and missing parents. Throws levin::Error.
  explicit PendingDirectory(const std::string& final_path);
  /// Removes the temporary folder when commit() was not reached.
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  /// Returns the path of the temporary folder.
  const std::string& path() const { return path_; }

  /// Waits until the folder is on the disk and puts it in place; what was there before is removed. The files in it must
  /// have been synced. Throws levin::Error, and then what was there before is still there.
  void commit();

 private:
  void put_in_place();

  std::string final_path_;
  std::string parent_;
  std::string path_;
  Descriptor lock_;
};

}  // namespace levin
