#pragma once

#include <levin/core/accelerators/nvml.h>
#include <levin/core/base/mutex.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

namespace levin {

/// Chooses GPUs that no other process computes on, once for each count: all trainers of a process that ask for as many
/// get the same ones, and so do the ranks that it starts (processes read LEVIN_SELECTED_GPUS).
class GpuSelection {
 public:
  /// Time that the driver has to list the processes on the GPUs. A driver that has slept takes seconds for each GPU.
  static constexpr std::chrono::seconds kPatience{30};

  explicit GpuSelection(std::chrono::milliseconds patience = kPatience);
  static GpuSelection& of_process();

  /// Returns the CUDA indices of `count` free GPUs (-1: all free ones, at least one), in order; those not selected
  /// before for another count come first. Selected GPUs count as free. When NVML does not list a GPU's processes, it is
  /// used if more than 1 GiB is in use. `cuda_gpus`: see cuda_addresses.
  ///
  /// Throws ConfigError when too few are free, naming the processes on the others, and when there is no NVML. When the
  /// driver does not answer, warns and takes the first GPUs. Any thread may call it.
  std::vector<int64_t> select(int64_t count, const std::vector<PciAddress>& cuda_gpus);

 private:
  std::vector<int64_t> choose(int64_t count, const std::vector<PciAddress>& cuda_gpus) const LEVIN_REQUIRES(mutex_);
  bool was_selected(int64_t gpu) const LEVIN_REQUIRES(mutex_);

  const std::chrono::milliseconds patience_;
  Mutex mutex_;
  std::map<int64_t, std::vector<int64_t>> selected_ LEVIN_GUARDED_BY(mutex_);  ///< by the requested count
};

}  // namespace levin
