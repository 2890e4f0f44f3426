#include <levin/core/precision/half_precision_support.h>

#include <levin/build_info.h>
#include <levin/core/base/error.h>

#if LEVIN_HAS_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif
#include <fmt/format.h>

namespace levin {

bool computes_in_hardware(c10::ScalarType type, int major, int minor) {
  if (type == c10::ScalarType::BFloat16) return major >= 8;
  return major > 5 || (major == 5 && minor >= 3);
}

void require_half_precision([[maybe_unused]] const c10::Device& device, [[maybe_unused]] c10::ScalarType type,
                            [[maybe_unused]] const std::string& precision) {
#if LEVIN_HAS_CUDA
  if (!device.is_cuda()) return;
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(device.index());
  if (computes_in_hardware(type, properties->major, properties->minor)) return;
  throw Error("precision",
              fmt::format("'{}' needs a GPU that computes in {}; got {} of compute capability {}.{}; valid: {} or "
                          "later; hint: precision: {}",
                          precision, c10::toString(type), properties->name, properties->major, properties->minor,
                          type == c10::ScalarType::BFloat16 ? "8.0" : "5.3",
                          type == c10::ScalarType::BFloat16 ? "16-mixed" : "32-true"));
#endif
}

}  // namespace levin
