#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace levin {

/// The cores that this process has, as Linux tells: /proc, and the control groups in /sys/fs/cgroup. What cannot be
/// read counts as no limit.
class CpuCores {
 public:
  /// `root`: the folder that has proc and sys, for tests.
  explicit CpuCores(std::string root = "");

  /// How many cores the process may use: those of its affinity mask, or the fewer that the quota of its control group
  /// (`docker run --cpus`, a pod's limit) pays for. Above 0, and a fraction where the quota is one.
  double usable() const;
  /// How many of those the other processes leave at this moment. Where at least `enough` are free at a glance it says
  /// so at once; else it takes 0.1 s to measure.
  double free(double enough) const;

 private:
  std::string text_of(const std::string& path) const;
  std::optional<double> quota() const;

  const std::string root_;
  std::set<int64_t> allowed_;  ///< by the affinity mask
};

/// How many threads the operators of one rank may have where `local_ranks` ranks share this host: an equal part of the
/// usable cores, at least one. 0, for "as it is", where the user has set OMP_NUM_THREADS.
int64_t threads_of_rank(int64_t local_ranks);

/// How many of `cores` were idle between two texts of /proc/stat, on average; nothing where they do not say.
std::optional<double> idle_cores(const std::string& before, const std::string& after, const std::set<int64_t>& cores);

}  // namespace levin
