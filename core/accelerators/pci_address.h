#pragma once

#include <cstdint>

namespace levin {

/// A GPU's place on the PCI bus. CUDA and NVML number GPUs in different orders; these addresses are the same in both.
struct PciAddress {
  uint32_t domain = 0;
  uint32_t bus = 0;
  uint32_t device = 0;
  bool operator==(const PciAddress&) const = default;
};

}  // namespace levin
