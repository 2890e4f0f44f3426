#pragma once

#include <levin/core/base/descriptor.h>

#include <string>

namespace levin {

/// A folder, private to the user, in which a forked rank leaves what its parent gets; removed with this object. It lies
/// in memory (/dev/shm) where that has room, else in the folder for temporary files. Those of killed programs are
/// removed when the next one is made.
class OutcomeFolder {
 public:
  OutcomeFolder();
  ~OutcomeFolder() { remove(); }
  OutcomeFolder(const OutcomeFolder&) = delete;
  OutcomeFolder& operator=(const OutcomeFolder&) = delete;

  const std::string& path() const { return path_; }
  /// Also removes what is written at the same moment.
  void remove() const;

 private:
  std::string path_;
  Descriptor lock_;
};

}  // namespace levin
