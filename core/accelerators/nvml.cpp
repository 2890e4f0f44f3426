#include <levin/core/accelerators/nvml.h>

#include <levin/core/accelerators/byte_units.h>

#include <dlfcn.h>
#include <fmt/format.h>
#include <nvml.h>

#include <array>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <utility>

namespace levin {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

using Clock = std::chrono::steady_clock;

}  // namespace

/// The library's functions; what an older driver lacks is nullptr.
struct Nvml::Functions {
  const std::atomic<bool>* const abandoned;
  void* library = nullptr;
  bool is_initialized = false;

  decltype(&::nvmlInit_v2) init = nullptr;
  decltype(&::nvmlShutdown) shutdown = nullptr;
  decltype(&::nvmlErrorString) error_string = nullptr;
  decltype(&::nvmlDeviceGetCount_v2) count = nullptr;
  decltype(&::nvmlDeviceGetHandleByIndex_v2) handle_by_index = nullptr;
  decltype(&::nvmlDeviceGetName) name = nullptr;
  decltype(&::nvmlDeviceGetUUID) uuid = nullptr;
  decltype(&::nvmlDeviceGetPciInfo_v3) pci_info = nullptr;
  decltype(&::nvmlDeviceGetUtilizationRates) utilization = nullptr;
  decltype(&::nvmlDeviceGetMemoryInfo) memory = nullptr;
  decltype(&::nvmlDeviceGetMemoryInfo_v2) memory_v2 = nullptr;
  decltype(&::nvmlDeviceGetTemperature) temperature = nullptr;
  decltype(&::nvmlDeviceGetTemperatureV) temperature_v = nullptr;
  decltype(&::nvmlDeviceGetPowerUsage) power = nullptr;
  decltype(&::nvmlDeviceGetEnforcedPowerLimit) power_limit = nullptr;
  decltype(&::nvmlDeviceGetClockInfo) clock = nullptr;
  decltype(&::nvmlDeviceGetPcieThroughput) pcie_throughput = nullptr;
  decltype(&::nvmlDeviceGetFieldValues) field_values = nullptr;
  decltype(&::nvmlDeviceGetComputeRunningProcesses_v3) processes = nullptr;

  explicit Functions(const std::atomic<bool>* is_abandoned) : abandoned(is_abandoned) {}
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;
  ~Functions() {
    if (is_abandoned()) return;
    if (is_initialized) shutdown();
    if (library != nullptr) dlclose(library);
  }

  bool is_abandoned() const { return abandoned != nullptr && *abandoned; }

  /// Calls a function that the driver has, while somebody waits for it.
  template <class Function, class... Arguments>
  nvmlReturn_t call(Function function, Arguments... arguments) const {
    if (function == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
    return is_abandoned() ? NVML_ERROR_TIMEOUT : function(arguments...);
  }

  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }

  /// Returns what the library must have and has not, or an empty string.
  std::string find_all() {
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(error_string, "nvmlErrorString");
    find(count, "nvmlDeviceGetCount_v2");
    find(handle_by_index, "nvmlDeviceGetHandleByIndex_v2");
    find(name, "nvmlDeviceGetName");
    find(uuid, "nvmlDeviceGetUUID");
    find(pci_info, "nvmlDeviceGetPciInfo_v3");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(memory_v2, "nvmlDeviceGetMemoryInfo_v2");
    find(temperature, "nvmlDeviceGetTemperature");
    find(temperature_v, "nvmlDeviceGetTemperatureV");
    find(power, "nvmlDeviceGetPowerUsage");
    find(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(clock, "nvmlDeviceGetClockInfo");
    find(pcie_throughput, "nvmlDeviceGetPcieThroughput");
    find(field_values, "nvmlDeviceGetFieldValues");
    find(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    // The same structures under an older name.
    if (processes == nullptr) find(processes, "nvmlDeviceGetComputeRunningProcesses_v2");
    if (init == nullptr) return "nvmlInit_v2";
    if (shutdown == nullptr) return "nvmlShutdown";
    if (count == nullptr) return "nvmlDeviceGetCount_v2";
    if (handle_by_index == nullptr) return "nvmlDeviceGetHandleByIndex_v2";
    return "";
  }

  std::string words_for(nvmlReturn_t result) const {
    if (error_string != nullptr && !is_abandoned()) return error_string(result);
    return fmt::format("error {}", static_cast<int>(result));
  }
};

struct Nvml::Handle {
  nvmlDevice_t device = nullptr;
  /// The counters at the last reading, in KiB: received, sent.
  std::optional<std::array<double, 2>> nvlink;
  Clock::time_point nvlink_time;
};

std::string NvmlGpu::describe() const {
  if (name.empty() && uuid.empty()) return fmt::format("GPU {}", index);
  return fmt::format("GPU {} ({}{}{})", index, name, name.empty() || uuid.empty() ? "" : ", ", uuid);
}

Nvml::Opened Nvml::open(const std::atomic<bool>* is_abandoned) {
  const char* const named = std::getenv("LEVIN_NVML_LIBRARY");
  const std::string library = named != nullptr && *named != '\0' ? named : kLibrary;
  auto functions = std::make_unique<Functions>(is_abandoned);
  functions->library = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (functions->library == nullptr)
    return {nullptr, fmt::format("NVML, which comes with NVIDIA's driver, cannot be loaded: {}", dlerror())};
  if (const std::string missing = functions->find_all(); !missing.empty())
    return {nullptr,
            fmt::format("{} is no NVML that can be used, or that of a driver too old: it lacks {}", library, missing)};
  const nvmlReturn_t result = functions->call(functions->init);
  if (result != NVML_SUCCESS) return {nullptr, fmt::format("{} says: {}", library, functions->words_for(result))};
  functions->is_initialized = true;
  auto nvml = std::unique_ptr<Nvml>(new Nvml(std::move(functions)));
  nvml->list_gpus();
  return {std::move(nvml), ""};
}

Nvml::Nvml(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}
Nvml::~Nvml() = default;

void Nvml::list_gpus() {
  unsigned int count = 0;
  if (functions_->call(functions_->count, &count) != NVML_SUCCESS) return;
  for (unsigned int index = 0; index < count; ++index) {
    gpus_.push_back({.index = index});
    handles_.emplace_back();
    NvmlGpu& gpu = gpus_.back();
    nvmlDevice_t& device = handles_.back().device;
    const nvmlReturn_t result = functions_->call(functions_->handle_by_index, index, &device);
    if (result != NVML_SUCCESS) {
      gpu.fault = functions_->words_for(result);
      continue;
    }
    constexpr unsigned int kRoom = NVML_DEVICE_UUID_V2_BUFFER_SIZE;
    std::array<char, kRoom> text{};
    if (functions_->call(functions_->name, device, text.data(), kRoom) == NVML_SUCCESS) gpu.name = text.data();
    if (functions_->call(functions_->uuid, device, text.data(), kRoom) == NVML_SUCCESS) gpu.uuid = text.data();
    nvmlPciInfo_t pci{};
    if (functions_->call(functions_->pci_info, device, &pci) == NVML_SUCCESS)
      gpu.address = {pci.domain, pci.bus, pci.device};
  }
}

bool Nvml::succeeded(size_t gpu, int result) {
  if (result == NVML_ERROR_GPU_IS_LOST || result == NVML_ERROR_GPU_NOT_FOUND || result == NVML_ERROR_RESET_REQUIRED)
    gpus_[gpu].fault = functions_->words_for(static_cast<nvmlReturn_t>(result));
  return result == NVML_SUCCESS;
}

GpuReading Nvml::read(size_t gpu) {
  GpuReading reading;
  const nvmlDevice_t device = handles_[gpu].device;
  // Nothing is asked for once the GPU has gone.
  const auto ask = [&](auto function, auto... arguments) {
    return gpus_[gpu].fault.empty() && succeeded(gpu, functions_->call(function, device, arguments...));
  };
  const Functions& nvml = *functions_;

  nvmlUtilization_t utilization{};
  if (ask(nvml.utilization, &utilization)) {
    reading.utilization_percent = utilization.gpu;
    reading.memory_utilization_percent = utilization.memory;
  }
  read_memory(gpu, reading);
  nvmlTemperature_t temperature{.version = nvmlTemperature_v1, .sensorType = NVML_TEMPERATURE_GPU, .temperature = 0};
  unsigned int celsius = 0;
  if (ask(nvml.temperature_v, &temperature))
    reading.temperature_celsius = temperature.temperature;
  else if (ask(nvml.temperature, NVML_TEMPERATURE_GPU, &celsius))
    reading.temperature_celsius = celsius;
  unsigned int value = 0;
  if (ask(nvml.power, &value)) reading.power_watts = value / 1000.0;
  if (ask(nvml.power_limit, &value)) reading.power_limit_watts = value / 1000.0;
  if (ask(nvml.clock, NVML_CLOCK_SM, &value)) reading.sm_clock_mhz = value;
  if (ask(nvml.clock, NVML_CLOCK_MEM, &value)) reading.memory_clock_mhz = value;
  if (ask(nvml.pcie_throughput, NVML_PCIE_UTIL_RX_BYTES, &value))
    reading.pcie_receive_mib_per_second = value / kKibibytesInMebibyte;
  if (ask(nvml.pcie_throughput, NVML_PCIE_UTIL_TX_BYTES, &value))
    reading.pcie_send_mib_per_second = value / kKibibytesInMebibyte;
  read_nvlink(gpu, reading);
  if (const auto running = processes(gpu)) reading.processes = static_cast<double>(running->size());
  // Numbers of a GPU that went away meanwhile say nothing.
  return gpus_[gpu].fault.empty() ? reading : GpuReading();
}

void Nvml::read_memory(size_t gpu, GpuReading& reading) {
  if (!gpus_[gpu].fault.empty()) return;
  // Leaves out of `used` what the driver keeps for itself, as nvidia-smi does.
  nvmlMemory_v2_t memory_v2{};
  memory_v2.version = nvmlMemory_v2;
  if (succeeded(gpu, functions_->call(functions_->memory_v2, handles_[gpu].device, &memory_v2))) {
    reading.memory_used_mib = static_cast<double>(memory_v2.used) / kMebibyte;
    reading.memory_total_mib = static_cast<double>(memory_v2.total) / kMebibyte;
    return;
  }
  nvmlMemory_t memory{};
  if (!succeeded(gpu, functions_->call(functions_->memory, handles_[gpu].device, &memory))) return;
  reading.memory_used_mib = static_cast<double>(memory.used) / kMebibyte;
  reading.memory_total_mib = static_cast<double>(memory.total) / kMebibyte;
}

std::optional<double> Nvml::memory_used_mib(size_t gpu) {
  GpuReading reading;
  read_memory(gpu, reading);
  return reading.memory_used_mib;
}

void Nvml::read_nvlink(size_t gpu, GpuReading& reading) {
  if (!gpus_[gpu].fault.empty()) return;
  constexpr int kFields = 2;
  std::array<nvmlFieldValue_t, kFields> fields{};
  fields[0].fieldId = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
  fields[1].fieldId = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX;
  for (auto& field : fields) field.scopeId = UINT_MAX;  // the sum over all links
  Handle& handle = handles_[gpu];
  if (!succeeded(gpu, functions_->call(functions_->field_values, handle.device, kFields, fields.data()))) return;
  const auto now = Clock::now();
  std::array<double, 2> counters{};
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].nvmlReturn != NVML_SUCCESS || fields[i].valueType != NVML_VALUE_TYPE_UNSIGNED_LONG_LONG) return;
    counters[i] = static_cast<double>(fields[i].value.ullVal);
  }
  const double seconds = std::chrono::duration<double>(now - handle.nvlink_time).count();
  if (handle.nvlink && seconds > 0 && counters[0] >= (*handle.nvlink)[0] && counters[1] >= (*handle.nvlink)[1]) {
    reading.nvlink_receive_mib_per_second = (counters[0] - (*handle.nvlink)[0]) / kKibibytesInMebibyte / seconds;
    reading.nvlink_send_mib_per_second = (counters[1] - (*handle.nvlink)[1]) / kKibibytesInMebibyte / seconds;
  }
  handle.nvlink = counters;
  handle.nvlink_time = now;
}

std::optional<std::vector<GpuProcess>> Nvml::processes(size_t gpu) {
  if (!gpus_[gpu].fault.empty()) return std::nullopt;
  std::vector<nvmlProcessInfo_t> infos(16);
  for (;;) {
    auto count = static_cast<unsigned int>(infos.size());
    const nvmlReturn_t result = functions_->call(functions_->processes, handles_[gpu].device, &count, infos.data());
    if (result == NVML_ERROR_INSUFFICIENT_SIZE && count > infos.size()) {
      infos.resize(count + 16);  // others may start meanwhile
      continue;
    }
    if (!succeeded(gpu, result)) return std::nullopt;
    std::vector<GpuProcess> found;
    for (unsigned int i = 0; i < count; ++i) {
      found.push_back({.pid = infos[i].pid, .memory_mib = std::nullopt});
      const unsigned long long used = infos[i].usedGpuMemory;
      if (used != static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE))
        found.back().memory_mib = static_cast<double>(used) / kMebibyte;
    }
    return found;
  }
}

}  // namespace levin
