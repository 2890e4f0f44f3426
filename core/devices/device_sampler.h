#pragma once

#include <levin/core/accelerators/nvml.h>

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Reduction of several samples of a quantity to one value.
enum class SampleFold { kMean, kMax, kMin };

/// A sampled quantity: "gpu0/power_watts", "cpu/resident_memory_mib".
struct SampledQuantity {
  std::string name;
  SampleFold fold;
};

/// Devices that a sampler reads.
struct SampledDevices {
  struct Gpu {
    std::optional<PciAddress> address;        ///< for NVML; unset: NVML is not read
    std::optional<c10::Device> allocator_of;  ///< the CUDA device whose allocator in this process is read
  };
  bool process = true;
  bool host = true;
  std::vector<Gpu> gpus;
  bool other_gpus = false;  ///< also the other GPUs that NVML lists, except `except`
  std::vector<PciAddress> except;
};

/// Samples processor, memory and GPUs on a thread of its own: at construction, then once an interval. No call waits for
/// the GPU driver longer than `kPatience`.
class DeviceSampler {
 public:
  static constexpr std::chrono::seconds kPatience{3};

  DeviceSampler(std::chrono::duration<double> interval, SampledDevices devices);
  /// Calls stop(false).
  ~DeviceSampler();
  DeviceSampler(const DeviceSampler&) = delete;
  DeviceSampler& operator=(const DeviceSampler&) = delete;

  /// Returns the sampled quantities, fixed at construction. A GPU's name has the number that nvidia-smi shows; without
  /// NVML, CUDA's.
  const std::vector<SampledQuantity>& quantities() const { return quantities_; }

  /// Sets `values` to one value for each quantity since the last call, NaN without a sample. Allocates only when
  /// `values` is too small.
  void take(std::vector<double>& values);
  /// Returns the number of samples so far.
  int64_t samples() const;
  /// Returns new messages for the user, each once: no NVML, a GPU that fell off the bus, a driver that does not answer.
  std::vector<std::string> take_messages();

  /// Ends sampling, with one last sample if wanted; `take` may still be called. A thread stuck in the driver is left
  /// behind: it ends when the driver returns, and touches nothing else of the process.
  void stop(bool with_last_sample);

 private:
  class Work;

  std::shared_ptr<Work> work_;  ///< shared with the thread
  std::vector<SampledQuantity> quantities_;
};

}  // namespace levin
