#pragma once

#include <levin/core/devices/nvml.h>

#include <vector>

namespace levin {

/// Where the CUDA devices are that this process can use, in CUDA's order: as CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
/// have it. Starts CUDA's driver.
std::vector<PciAddress> cuda_addresses();

}  // namespace levin
