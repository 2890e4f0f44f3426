#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Where a GPU sits in the machine. CUDA and NVML number GPUs each in an order of its own; on this they agree.
struct PciAddress {
  uint32_t domain = 0;
  uint32_t bus = 0;
  uint32_t device = 0;
  bool operator==(const PciAddress&) const = default;
};

/// A GPU as NVML lists it.
struct NvmlGpu {
  int64_t index = 0;  ///< the number that nvidia-smi shows
  std::string name;
  std::string uuid;
  PciAddress address;
  std::string fault;  ///< why nothing can be read from it, if so

  /// "GPU 1 (NVIDIA H100, GPU-2f1c...)"
  std::string describe() const;
};

/// What one GPU does at a moment. What the GPU does not support, or what permissions deny, is absent.
struct GpuReading {
  std::optional<double> utilization_percent;         ///< of the time in which a kernel ran
  std::optional<double> memory_utilization_percent;  ///< of the time in which memory was read or written
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
  std::optional<double> processes;  ///< with a compute context
};

/// A process with a compute context on a GPU.
struct GpuProcess {
  int64_t pid = 0;                   ///< as the host counts, which a container need not
  std::optional<double> memory_mib;  ///< absent where the driver does not say
};

/// NVIDIA's management library as it is on this machine, loaded at run time. One thread at a time may use an object; a
/// call takes as long as the driver does. Not to be kept across a fork.
class Nvml {
 public:
  struct Opened {
    std::unique_ptr<Nvml> nvml;  ///< or nullptr,
    std::string reason;          ///< and why
  };
  /// Loads libnvidia-ml.so.1, or the library that the environment variable LEVIN_NVML_LIBRARY names.
  ///
  /// `is_abandoned`, which outlives the object, is for a thread that nobody waits for any more because the driver holds
  /// it. Once it is true, the driver is asked nothing further, not even to close: the process may be at its end.
  static Opened open(const std::atomic<bool>* is_abandoned = nullptr);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// All that there are, in NVML's order.
  const std::vector<NvmlGpu>& gpus() const { return gpus_; }

  /// Of the GPU at a place in `gpus`. When it has fallen off the bus, its `fault` says so from here on, and nothing is
  /// read any more.
  GpuReading read(size_t gpu);
  /// Nothing where the driver does not tell.
  std::optional<std::vector<GpuProcess>> processes(size_t gpu);
  std::optional<double> memory_used_mib(size_t gpu);

 private:
  struct Functions;
  struct Handle;

  explicit Nvml(std::unique_ptr<Functions> functions);
  void list_gpus();
  /// Whether a call has told something; notes what makes further calls useless.
  bool succeeded(size_t gpu, int result);
  void read_memory(size_t gpu, GpuReading& reading);
  void read_nvlink(size_t gpu, GpuReading& reading);

  std::unique_ptr<Functions> functions_;
  std::vector<NvmlGpu> gpus_;
  std::vector<Handle> handles_;
};

}  // namespace levin
