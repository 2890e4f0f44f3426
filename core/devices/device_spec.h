#pragma once

#include <levin/core/accelerators/accelerator.h>
#include <levin/core/base/schema.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace levin {

/// The `devices` option: a count (`2`, `"2"`), a list of indices (`[1, 3]`, `"1,3"`), `-1` for all, or "auto".
class DeviceSpec {
 public:
  DeviceSpec() : config_(Config::scalar("auto")) {}
  DeviceSpec(int count) : config_(ConfigCodec<int64_t>::dump(count)) {}  // NOLINT(google-explicit-constructor)
  DeviceSpec(const char* text) : config_(Config::scalar(text, true)) {}  // NOLINT(google-explicit-constructor)
  DeviceSpec(const std::vector<int64_t>& indices)                        // NOLINT(google-explicit-constructor)
      : config_(ConfigCodec<std::vector<int64_t>>::dump(indices)) {}
  explicit DeviceSpec(Config config) : config_(std::move(config)) {}
  const Config& config() const { return config_; }

 private:
  Config config_;
};

template <>
struct ConfigCodec<DeviceSpec> {
  static std::string type_name() { return "integer, list of integers or 'auto'"; }
  static DeviceSpec parse(const Config& node, const std::string& path);
  static Config dump(const DeviceSpec& value);
};

/// The older `gpus` option, with values of its own: null or 0: the CPU; 3: the first three; -1: all; a list or a
/// string: exactly those indices ("3" is GPU 3).
class GpuSpec {
 public:
  GpuSpec() = default;
  GpuSpec(int count) : config_(ConfigCodec<int64_t>::dump(count)) {}  // NOLINT(google-explicit-constructor)
  GpuSpec(const char* text) : config_(Config::scalar(text, true)) {}  // NOLINT(google-explicit-constructor)
  GpuSpec(const std::vector<int64_t>& indices)                        // NOLINT(google-explicit-constructor)
      : config_(ConfigCodec<std::vector<int64_t>>::dump(indices)) {}
  explicit GpuSpec(Config config) : config_(std::move(config)) {}
  const Config& config() const { return config_; }

 private:
  Config config_;
};

template <>
struct ConfigCodec<GpuSpec> {
  static std::string type_name() { return "integer, list of integers, string or null"; }
  static GpuSpec parse(const Config& node, const std::string& path);
  static Config dump(const GpuSpec& value) { return value.config(); }
};

/// Returns how many devices of a kind may be used.
using DeviceCount = std::function<int64_t(const Accelerator&)>;
/// Asks the accelerator itself.
int64_t count_devices(const Accelerator& accelerator);

/// Throws ConfigError that says, for an option that asks for TPUs, why there are none.
[[noreturn]] void refuse_tpu(const std::string& option);

/// Chooses `count` of the GPUs, -1 for all usable ones; returns their CUDA indices.
using GpuChoice = std::function<std::vector<int64_t>(int64_t count)>;

/// Turns the options into devices. `accelerator`: the name of one in AcceleratorRegistry, "gpu" for cuda, or "auto" for
/// the first of them that has devices. A count of devices means the first ones, or those that `choose` returns, which
/// is not called when no GPU is wanted or there is none. Throws ConfigError naming what is there when the options ask
/// for more, and when they name GPUs (or the CPU) although `choose` is given.
std::vector<at::Device> resolve_devices(const std::string& accelerator, const DeviceSpec& devices, const GpuSpec& gpus,
                                        const DeviceCount& count = count_devices, const GpuChoice& choose = {});

}  // namespace levin
