#pragma once

#include <levin/core/devices/nvml.h>

#include <cstdint>
#include <vector>

namespace levin {

/// CUDA's numbers of `count` GPUs (-1: all there are, at least one) that no other process computes on, lowest first.
/// Where NVML does not say who uses a GPU, one with more than 1 GiB in use counts as used. `cuda_gpus`: see
/// cuda_addresses. Throws ConfigError where too few are free, naming who uses the others, and where there is no NVML.
///
/// What has been selected stays selected, and counts as free, for this process and for the ranks that it starts as
/// processes (they find it in LEVIN_SELECTED_GPUS): they all get the same GPUs.
std::vector<int64_t> select_free_gpus(int64_t count, const std::vector<PciAddress>& cuda_gpus);

}  // namespace levin
