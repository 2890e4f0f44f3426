#include <levin/core/devices/cuda_addresses.h>

#include <levin/build_info.h>
#include <levin/core/devices/device_spec.h>

#if LEVIN_HAS_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace levin {

std::vector<PciAddress> cuda_addresses() {
  std::vector<PciAddress> addresses;
#if LEVIN_HAS_CUDA
  const int64_t count = cuda_device_count();
  for (int64_t ordinal = 0; ordinal < count; ++ordinal) {
    const cudaDeviceProp& device = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(ordinal));
    addresses.push_back({static_cast<uint32_t>(device.pciDomainID), static_cast<uint32_t>(device.pciBusID),
                         static_cast<uint32_t>(device.pciDeviceID)});
  }
#endif
  return addresses;
}

}  // namespace levin
