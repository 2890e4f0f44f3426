#pragma once

#include <levin/core/devices/nvml.h>

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// How several samples of a quantity become one value.
enum class SampleFold { kMean, kMax, kMin };

/// Something that is sampled: "gpu0/power_watts", "cpu/resident_memory_mib".
struct SampledQuantity {
  std::string name;
  SampleFold fold;
};

/// What a sampler looks at.
struct SampledDevices {
  struct Gpu {
    std::optional<PciAddress> address;        ///< for NVML; nothing: NVML is not asked
    std::optional<c10::Device> allocator_of;  ///< the CUDA device whose allocator in this process is read
  };
  bool process = true;
  bool host = true;
  std::vector<Gpu> gpus;
  bool other_gpus = false;         ///< also all others that NVML lists,
  std::vector<PciAddress> except;  ///< but for these
};

/// Samples processor, memory and GPUs on a thread of its own, from its construction on: at once, then once an interval.
/// Whatever the driver does, nobody who calls this waits for it longer than `kPatience`.
class DeviceSampler {
 public:
  static constexpr std::chrono::seconds kPatience{3};

  DeviceSampler(std::chrono::duration<double> interval, SampledDevices devices);
  /// As stop(false).
  ~DeviceSampler();
  DeviceSampler(const DeviceSampler&) = delete;
  DeviceSampler& operator=(const DeviceSampler&) = delete;

  /// The same from construction on. A GPU's name has the number that nvidia-smi shows; where there is no NVML, CUDA's.
  const std::vector<SampledQuantity>& quantities() const { return quantities_; }

  /// One value a quantity of what was sampled since the last call, NaN where there was nothing. Allocates only when
  /// `values` is too small.
  void take(std::vector<double>& values);
  /// How many samples there have been.
  int64_t samples() const;
  /// What the user should know: no NVML, a GPU that fell off, a driver that does not answer. Each is told once.
  std::vector<std::string> take_messages();

  /// Ends sampling, with one last sample if wanted; `take` may still be called. A thread that the driver holds is left
  /// to itself: it ends when the driver lets it go, and touches nothing of the process until then.
  void stop(bool with_last_sample);

 private:
  class Work;

  std::shared_ptr<Work> work_;  ///< shared with the thread
  std::vector<SampledQuantity> quantities_;
};

}  // namespace levin
