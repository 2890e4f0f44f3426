// A library with NVML's interface and no GPU behind it, for tests. LEVIN_STAND_IN_NVML names its script, which
// nvmlInit_v2 reads: lines "KEY NUMBER".
//
//   gpus 2                       how many there are
//   init 9                       what nvmlInit_v2 returns
//   gpu1.power 250000            what a function gives, in NVML's units
//   gpu1.bus 7                   PCI bus
//   gpu1.process.4321 512        a process with a compute context and its MiB; -1: not told
//   gpu1.self 100                the same, of the process that asks
//   gpu1.nvlink_send 1048576     KiB that were sent between two readings of the counters
//   gpu1.lost_after 20           calls until the GPU falls off the bus
//   deny.power 1                 no permission (unsupported.power 1: not supported), on every GPU
//   hang.power 1                 the call takes as long as the script's file is there
//
// Compiled with LEVIN_STAND_IN_OLD_DRIVER it lacks what drivers of 2019 lacked.
#include <nvml.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

// Never destroyed, nor is the library unloaded: a call may hang on a thread until the process has ended.
std::mutex& mutex = *new std::mutex;
std::string& script_path = *new std::string;
std::map<std::string, double>& script = *new std::map<std::string, double>;
std::map<unsigned int, double>& calls = *new std::map<unsigned int, double>;
std::map<unsigned int, uint64_t>& counter_readings = *new std::map<unsigned int, uint64_t>;

double value(const std::string& key, double otherwise = 0) {
  const std::lock_guard lock(mutex);
  const auto found = script.find(key);
  return found == script.end() ? otherwise : found->second;
}

unsigned int number(nvmlDevice_t device) { return static_cast<unsigned int>(reinterpret_cast<uintptr_t>(device) - 1); }

std::string key(nvmlDevice_t device, const std::string& what) {
  return "gpu" + std::to_string(number(device)) + "." + what;
}

void hang_in(const std::string& function) {
  if (value("hang." + function) == 0) return;
  const std::string path = [] {
    const std::lock_guard lock(mutex);
    return script_path;
  }();
  while (access(path.c_str(), F_OK) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

nvmlReturn_t called(nvmlDevice_t device, const std::string& function) {
  hang_in(function);
  const double lost_after = value(key(device, "lost_after"), 1e9);
  {
    const std::lock_guard lock(mutex);
    if (++calls[number(device)] > lost_after) return NVML_ERROR_GPU_IS_LOST;
  }
  if (value("deny." + function) != 0) return NVML_ERROR_NO_PERMISSION;
  if (value("unsupported." + function) != 0) return NVML_ERROR_NOT_SUPPORTED;
  return NVML_SUCCESS;
}

template <class Number>
nvmlReturn_t give(nvmlDevice_t device, const std::string& what, Number* into, double otherwise) {
  const nvmlReturn_t result = called(device, what);
  if (result == NVML_SUCCESS) *into = static_cast<Number>(value(key(device, what), otherwise));
  return result;
}

nvmlReturn_t give_processes(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t* infos) {
  const nvmlReturn_t result = called(device, "processes");
  if (result != NVML_SUCCESS) return result;
  std::vector<std::pair<unsigned int, double>> running;
  if (const double own = value(key(device, "self")); own != 0)
    running.emplace_back(static_cast<unsigned int>(getpid()), own);
  {
    const std::lock_guard lock(mutex);
    const std::string prefix = key(device, "process.");
    for (const auto& [name, mebibytes] : script)
      if (name.rfind(prefix, 0) == 0)
        running.emplace_back(static_cast<unsigned int>(std::stoul(name.substr(prefix.size()))), mebibytes);
  }
  const unsigned int room = *count;
  *count = static_cast<unsigned int>(running.size());
  if (room < running.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (size_t i = 0; i < running.size(); ++i) {
    infos[i].pid = running[i].first;
    infos[i].usedGpuMemory = running[i].second < 0 ? static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE)
                                                   : static_cast<unsigned long long>(running[i].second) << 20;
  }
  return NVML_SUCCESS;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlInit_v2(void) {
  {
    const std::lock_guard lock(mutex);
    script.clear();
    calls.clear();
    counter_readings.clear();
    const char* path = std::getenv("LEVIN_STAND_IN_NVML");
    script_path = path == nullptr ? "" : path;
    std::ifstream file(script_path);
    std::string name;
    for (double amount = 0; file >> name >> amount;) script[name] = amount;
  }
  hang_in("init");
  return static_cast<nvmlReturn_t>(value("init"));
}

nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }

const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_ERROR_NO_PERMISSION:
      return "Insufficient Permissions";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    default:
      return "Unknown Error";
  }
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(value("gpus"));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  *device = reinterpret_cast<nvmlDevice_t>(static_cast<uintptr_t>(index) + 1);
  return static_cast<nvmlReturn_t>(value(key(*device, "handle")));
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  std::snprintf(name, length, "Stand-in %u", number(device));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  std::snprintf(uuid, length, "GPU-0000-%u", number(device));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  pci->domain = 0;
  pci->bus = static_cast<unsigned int>(value(key(device, "bus"), 16 * (number(device) + 1)));
  pci->device = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  const nvmlReturn_t result = called(device, "utilization");
  utilization->gpu = static_cast<unsigned int>(value(key(device, "utilization"), 50));
  utilization->memory = static_cast<unsigned int>(value(key(device, "memory_utilization"), 20));
  return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  memory->total = 80ULL << 30;
  // With what the driver keeps for itself.
  memory->used = (static_cast<unsigned long long>(value(key(device, "memory"), 100)) + 500) << 20;
  memory->free = memory->total - memory->used;
  return called(device, "memory");
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* power) {
  return give(device, "power", power, 300000);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* limit) {
  return give(device, "power_limit", limit, 700000);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  return type == NVML_CLOCK_SM ? give(device, "sm_clock", clock, 1980) : give(device, "memory_clock", clock, 2619);
}

#ifdef LEVIN_STAND_IN_OLD_DRIVER

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t, unsigned int* temperature) {
  return give(device, "temperature", temperature, 60);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_v2_t* infos) {
  return give_processes(device, count, infos);
}

#else

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  memory->total = 80ULL << 30;
  memory->reserved = 500ULL << 20;
  memory->used = static_cast<unsigned long long>(value(key(device, "memory"), 100)) << 20;
  memory->free = memory->total - memory->reserved - memory->used;
  return called(device, "memory");
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return give(device, "temperature", &temperature->temperature, 60);
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int* throughput) {
  return counter == NVML_PCIE_UTIL_RX_BYTES ? give(device, "pcie_receive", throughput, 2048)
                                            : give(device, "pcie_send", throughput, 1024);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  const nvmlReturn_t result = called(device, "fields");
  const uint64_t readings = [device] {
    const std::lock_guard lock(mutex);
    return counter_readings[number(device)]++;
  }();
  for (int i = 0; i < count; ++i) {
    const bool receives = values[i].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
    values[i].nvmlReturn =
        value("unsupported.nvlink") != 0 || values[i].scopeId != ~0U ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
    values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    const double kibibytes = value(key(device, receives ? "nvlink_receive" : "nvlink_send"), 1024 * 1024);
    values[i].value.ullVal = static_cast<unsigned long long>(kibibytes) * readings;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_t* infos) {
  return give_processes(device, count, infos);
}

#endif

}  // extern "C"
