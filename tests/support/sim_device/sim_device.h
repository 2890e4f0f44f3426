#pragma once

#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/ledger.h"

#include <ATen/core/Tensor.h>

namespace levin::testing::sim {

/// Registers the simulated accelerator, the device kind "sim" (LibTorch's PrivateUse1), for the rest of the process, in
/// which it takes CUDA's place. Later calls do nothing. docs/devices.md says what it checks and what it cannot.
void install(const HardwareOptions& options = {});

/// What the devices have seen since reset_report().
Report report();
void reset_report();

/// "sim:INDEX".
at::Device device(c10::DeviceIndex index);

}  // namespace levin::testing::sim
