#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/descriptor.h>

#include <string>

namespace levin::sweep {

/// The folder of a sweep, locked as long as this object and every process that inherits lock() live.
class SweepFolder {
 public:
  /// Makes the folder, or goes on in it: `description` is what its sweep.yaml has and must have. Throws levin::Error
  /// where a sweep is at work in it, and ConfigError that names what differs where it is another sweep's.
  SweepFolder(const std::string& path, const Config& description);

  /// Absolute.
  const std::string& path() const { return path_; }
  int lock() const { return lock_.number(); }
  /// sweep.csv, empty where there is none.
  std::string read_table() const;
  /// Writes sweep.csv anew; at every moment there is a whole one.
  void write_table(const std::string& csv) const;

 private:
  void take_lock();

  std::string path_;
  Descriptor lock_;
};

/// Where a sweep without a name goes below `folder`: the newest version_N, if that is of the same sweep and has runs
/// that are not finished; else a new one.
std::string next_version(const std::string& folder, const Config& description);

/// Returns the folder of a sweep by its name, below that of all sweeps. Throws ConfigError for a name that leaves it.
std::string named_folder(const std::string& folder, const std::string& name);

}  // namespace levin::sweep
