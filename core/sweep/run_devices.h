#pragma once

#include <levin/core/base/config.h>
#include <levin/core/devices/device_spec.h>

#include <cstdint>

namespace levin::sweep {

/// The devices that a run asks for.
struct RunDevices {
  int64_t count = 1;  ///< on each host
  int64_t hosts = 1;
  bool are_gpus = false;
  bool all = false;        ///< all GPUs that there are
  bool are_named = false;  ///< certain GPUs, by number
};

/// Of a resolved section `trainer`. `available`: how many there are where it runs, or any large number where that is
/// not known. Throws ConfigError for more devices than there are.
RunDevices run_devices(const Config& trainer, const DeviceCount& available);

}  // namespace levin::sweep
