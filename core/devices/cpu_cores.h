#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace levin {

/// Cores that this process may use, from Linux' /proc and the control groups in /sys/fs/cgroup. What cannot be read
/// counts as no limit.
class CpuCores {
 public:
  /// `root`: the folder that has proc and sys, for tests.
  explicit CpuCores(std::string root = "");

  /// Returns the number of cores of the process's affinity mask, or the quota of its control group (`docker run
  /// --cpus`, a pod's limit) when that is less. Above 0; a fraction when the quota is one.
  double usable() const;
  /// Returns how many of those other processes leave free at this moment. Returns at once when at least `enough` are
  /// seen to be free; otherwise measures for 0.1 s.
  double free(double enough) const;

 private:
  std::string text_of(const std::string& path) const;
  std::optional<double> quota() const;

  const std::string root_;
  std::set<int64_t> allowed_;  ///< cores in the affinity mask
};

/// Returns the number of threads for one rank's operators when `local_ranks` ranks share this host: an equal part of
/// the usable cores, at least 1; 0, for no change, when the user has set OMP_NUM_THREADS.
int64_t threads_of_rank(int64_t local_ranks);

/// Returns how many of `cores` were idle on average between two texts of /proc/stat; nothing when they do not say.
std::optional<double> idle_cores(const std::string& before, const std::string& after, const std::set<int64_t>& cores);

}  // namespace levin
