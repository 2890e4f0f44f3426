#pragma once

#include <levin/core/accelerators/pci_address.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// A GPU as NVML lists it.
struct NvmlGpu {
  int64_t index = 0;  ///< the number that nvidia-smi shows
  std::string name;
  std::string uuid;
  PciAddress address;
  std::string fault;  ///< reason why nothing can be read from it, or empty

  /// Returns "GPU 1 (NVIDIA H100, GPU-2f1c...)".
  std::string describe() const;
};

/// State of one GPU at a moment. What the GPU does not support, or permissions deny, is absent.
struct GpuReading {
  std::optional<double> utilization_percent;         ///< share of the time in which a kernel ran
  std::optional<double> memory_utilization_percent;  ///< share of the time in which memory was read or written
  std::optional<double> memory_used_mib;
  std::optional<double> memory_total_mib;
  std::optional<double> temperature_celsius;
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
  std::optional<double> sm_clock_mhz;
  std::optional<double> memory_clock_mhz;
  std::optional<double> pcie_receive_mib_per_second;  ///< over 20 ms, into the GPU
  std::optional<double> pcie_send_mib_per_second;
  std::optional<double> nvlink_receive_mib_per_second;  ///< over all links since the last reading
  std::optional<double> nvlink_send_mib_per_second;
  std::optional<double> processes;  ///< processes with a compute context
};

/// A process with a compute context on a GPU.
struct GpuProcess {
  int64_t pid = 0;                   ///< in the host's numbering, which may differ in a container
  std::optional<double> memory_mib;  ///< absent where the driver does not say
};

/// NVIDIA's management library as it is on this machine, loaded at run time. One thread at a time may use an object; a
/// call takes as long as the driver does. Not to be kept across a fork.
class Nvml {
 public:
  struct Opened {
    std::unique_ptr<Nvml> nvml;  ///< nullptr when it could not be loaded
    std::string reason;          ///< why it could not be loaded
  };
  /// Loads libnvidia-ml.so.1, or the library that the environment variable LEVIN_NVML_LIBRARY names.
  ///
  /// `is_abandoned`, which outlives the object, is set when nobody waits any more for the thread, which is stuck in the
  /// driver. Then the driver is not called again, not even to close: the process may be at its end.
  static Opened open(const std::atomic<bool>* is_abandoned = nullptr);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// Returns all GPUs, in NVML's order.
  const std::vector<NvmlGpu>& gpus() const { return gpus_; }

  /// Reads the GPU at an index of `gpus`. When it has fallen off the bus, sets its `fault` and reads nothing from then
  /// on.
  GpuReading read(size_t gpu);
  /// Returns the processes on the GPU at an index of `gpus`; nothing when the driver does not tell.
  std::optional<std::vector<GpuProcess>> processes(size_t gpu);
  std::optional<double> memory_used_mib(size_t gpu);

 private:
  struct Functions;
  struct Handle;

  explicit Nvml(std::unique_ptr<Functions> functions);
  void list_gpus();
  /// Returns whether a call gave a value; sets the GPU's `fault` when further calls are useless.
  bool succeeded(size_t gpu, int result);
  void read_memory(size_t gpu, GpuReading& reading);
  void read_nvlink(size_t gpu, GpuReading& reading);

  std::unique_ptr<Functions> functions_;
  std::vector<NvmlGpu> gpus_;
  std::vector<Handle> handles_;
};

}  // namespace levin
