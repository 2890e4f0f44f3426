#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace levin {

/// Returns the device of the rank with this number on its host, of the `devices` that the trainer was given. Where a
/// launcher has started more ranks than that: the device with the rank's number, or, where the launcher shows each rank
/// a single device, that one. Throws ConfigError where there is none.
at::Device device_of_local_rank(const std::vector<at::Device>& devices, int64_t local_rank);

/// Throws ConfigError with this reason where a device that is no CPU is named twice.
void refuse_shared_devices(const std::vector<at::Device>& devices, std::string_view reason);

/// Backward of a device has one thread in a process, which a rank or replica that waits for another would hold; and so
/// has random numbers of a device one generator.
constexpr std::string_view kThreadsShareNone =
    "threads of one process need a device each; hint: strategy: {name: ddp, backend: gloo} lets processes share one, "
    "to try several ranks on a single device";

}  // namespace levin
