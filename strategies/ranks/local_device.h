#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace levin {

/// Returns the device of the rank with this number on its host, of the `devices` that the trainer was given. Where a
/// launcher has started more ranks than that: the device with the rank's number, or, where the launcher shows each rank
/// a single device, that one. Throws ConfigError where there is none.
at::Device device_of_local_rank(const std::vector<at::Device>& devices, int64_t local_rank);

}  // namespace levin
