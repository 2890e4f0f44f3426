#pragma once

#include <levin/core/accelerators/nvml.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Returns how many GPUs CUDA shows to a process with this value of CUDA_VISIBLE_DEVICES (nothing: not set), of those
/// that NVML lists: indices and beginnings of UUIDs count up to the first that names none. Nothing where it takes the
/// driver to know, as with instances of MIG.
std::optional<int64_t> visible_devices(const std::optional<std::string>& variable, const std::vector<NvmlGpu>& gpus);

}  // namespace levin
