#pragma once

#include <levin/core/devices/nvml.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace levin {

/// Chooses GPUs that no other process computes on, once for each count: trainers of a process that ask for as many get
/// the same ones, and so do the ranks that it starts (as processes they find them in LEVIN_SELECTED_GPUS).
class GpuSelection {
 public:
  /// How long the driver may take to say who uses which GPU. One that has slept takes seconds for each GPU.
  static constexpr std::chrono::seconds kPatience{30};

  explicit GpuSelection(std::chrono::milliseconds patience = kPatience);
  static GpuSelection& of_process();

  /// CUDA's numbers of `count` GPUs (-1: all there are, at least one) that are free, in order; those that were not
  /// selected before for another count come first. What was selected before counts as free. Where NVML does not say who
  /// uses a GPU, one with more than 1 GiB in use counts as used. `cuda_gpus`: see cuda_addresses.
  ///
  /// Throws ConfigError where too few are free, naming who uses the others, and where there is no NVML. Where the
  /// driver does not answer it warns, and takes the first GPUs. Any thread may call it.
  std::vector<int64_t> select(int64_t count, const std::vector<PciAddress>& cuda_gpus);

 private:
  std::vector<int64_t> choose(int64_t count, const std::vector<PciAddress>& cuda_gpus) const;
  bool was_selected(int64_t gpu) const;

  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::map<int64_t, std::vector<int64_t>> selected_;  ///< by the count that was asked for
};

}  // namespace levin
