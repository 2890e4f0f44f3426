#include <levin/core/accelerators/cuda_accelerator.h>

#include <levin/build_info.h>
#include <levin/core/accelerators/nvml.h>
#include <levin/core/accelerators/visible_devices.h>

#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <typeinfo>

#if LEVIN_HAS_CUDA
#include <levin/core/accelerators/cuda_graph_recorder.h>

#include <ATen/cuda/CUDAContext.h>
#endif

namespace levin {
namespace {

/// Asks the runtime, which starts the driver.
int64_t count_by_driver() { return at::detail::getCUDAHooks().deviceCount(); }

int64_t count_devices() {
  // at::hasCUDA() would ask the runtime too. A LibTorch without CUDA leaves the interface of its hooks as it is.
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  if (typeid(hooks) == typeid(at::CUDAHooksInterface)) return 0;
  // Without the driver's library there is nothing to count; loading it does not start it.
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return 0;
  dlclose(driver);
  const Nvml::Opened opened = Nvml::open();
  if (opened.nvml == nullptr) return count_by_driver();
  const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
  const auto count =
      visible_devices(variable == nullptr ? std::nullopt : std::optional<std::string>(variable), opened.nvml->gpus());
  return count ? *count : count_by_driver();
}

}  // namespace

int64_t CudaAccelerator::device_count() const {
  static const int64_t count = count_devices();
  return count;
}

std::string CudaAccelerator::hint_for_none() const {
  return "accelerator: cpu, or check that nvidia-smi lists a device and that LibTorch is a CUDA build";
}

bool CudaAccelerator::has_started() const {
  // Counting devices, or asking for contexts, would start it. A process that has not loaded the driver has not.
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return false;
  constexpr int kNotInitialized = 3;  // CUDA_ERROR_NOT_INITIALIZED
  using GetCurrentContext = int (*)(void** context);
  const auto get_current = reinterpret_cast<GetCurrentContext>(dlsym(driver, "cuCtxGetCurrent"));
  void* context = nullptr;
  const bool started = get_current != nullptr && get_current(&context) != kNotInitialized;
  dlclose(driver);
  return started;
}

std::optional<double> CudaAccelerator::peak_tflops(const at::Device& device, MatrixFormat format) const {
  return levin::peak_tflops(device_name(device), format);
}

bool CudaAccelerator::computes_in_hardware(at::ScalarType type, int major, int minor) {
  if (type == at::kBFloat16) return major >= 8;
  return major > 5 || (major == 5 && minor >= 3);
}

#if LEVIN_HAS_CUDA

std::vector<PciAddress> CudaAccelerator::pci_addresses() const {
  std::vector<PciAddress> addresses;
  const int64_t count = device_count();
  for (int64_t ordinal = 0; ordinal < count; ++ordinal) {
    const cudaDeviceProp& device = *at::cuda::getDeviceProperties(static_cast<at::DeviceIndex>(ordinal));
    addresses.push_back({static_cast<uint32_t>(device.pciDomainID), static_cast<uint32_t>(device.pciBusID),
                         static_cast<uint32_t>(device.pciDeviceID)});
  }
  return addresses;
}

std::string CudaAccelerator::device_name(const at::Device& device) const {
  return at::cuda::getDeviceProperties(device.index())->name;
}

std::string CudaAccelerator::lacks_type(const at::Device& device, at::ScalarType type) const {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device.index());
  if (computes_in_hardware(type, properties.major, properties.minor)) return "";
  return fmt::format("got {} of compute capability {}.{}; valid: {} or later", properties.name, properties.major,
                     properties.minor, type == at::kBFloat16 ? "8.0" : "5.3");
}

GraphSupport CudaAccelerator::make_graph_recorder(const at::Device& device) const {
  return {.recorder = std::make_unique<CudaGraphRecorder>(device), .why_not = ""};
}

#else

std::vector<PciAddress> CudaAccelerator::pci_addresses() const { return {}; }

std::string CudaAccelerator::device_name(const at::Device& device) const { return Accelerator::device_name(device); }

std::string CudaAccelerator::lacks_type(const at::Device&, at::ScalarType) const { return ""; }

GraphSupport CudaAccelerator::make_graph_recorder(const at::Device&) const {
  return {.recorder = nullptr, .why_not = "this Levin was built without CUDA"};
}

#endif

}  // namespace levin
