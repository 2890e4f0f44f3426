#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>

namespace levin {

/// Returns whether a CUDA device of this compute capability computes in the type (half or bfloat16) in hardware.
bool computes_in_hardware(c10::ScalarType type, int major, int minor);

/// Throws levin::Error when a device lacks the type that `precision`, a name, needs. CPUs have both types.
void require_half_precision(const c10::Device& device, c10::ScalarType type, const std::string& precision);

}  // namespace levin
