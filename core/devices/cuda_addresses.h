#pragma once

#include <levin/core/devices/nvml.h>

#include <vector>

namespace levin {

/// Returns the addresses of the CUDA devices that this process can use, in the order set by CUDA_VISIBLE_DEVICES and
/// CUDA_DEVICE_ORDER. Starts CUDA's driver.
std::vector<PciAddress> cuda_addresses();

}  // namespace levin
