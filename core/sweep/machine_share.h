#pragma once

#include <levin/core/sweep/run_devices.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace levin::sweep {

/// Divides the cores and GPUs of this machine among runs that go on at a time: a run finds its share in OMP_NUM_THREADS
/// and CUDA_VISIBLE_DEVICES.
class MachineShare {
 public:
  using Variables = std::map<std::string, std::string>;

  /// `gpus`: names of the GPUs, as CUDA_VISIBLE_DEVICES has them. `sets_threads`: false where the user has set
  /// OMP_NUM_THREADS, which then stays.
  MachineShare(int64_t parallel, double cores, std::vector<std::string> gpus, bool sets_threads);
  /// Of this machine, as this process may use it.
  static MachineShare of_this_machine(int64_t parallel);

  /// Throws ConfigError for a run that cannot have a share: one that names GPUs by number, where several run at a time.
  void check(const RunDevices& devices) const;
  /// Variables for the run; nothing while too few GPUs are free.
  std::optional<Variables> take(int64_t run, const RunDevices& devices);
  /// The run has ended.
  void give_back(int64_t run);

 private:
  size_t gpus_for(const RunDevices& devices) const;

  const int64_t parallel_;
  const double cores_;
  const std::vector<std::string> gpus_;
  const bool sets_threads_;
  std::map<std::string, int64_t> taken_;  ///< which run has a GPU
};

}  // namespace levin::sweep
