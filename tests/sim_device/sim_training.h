#pragma once

#include "tests/support/sim_device/sim_device.h"
#include "tests/support/tiny.h"

#include <ATen/Context.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/thread_generator.h>

#include <cstdint>
#include <vector>

namespace levin::testing {

/// Seeds the generators of the CPU and of all simulated devices alike: a module then draws the same numbers on each.
inline void seed_alike(uint64_t seed) {
  at::Generator(default_cpu_generator()).set_current_seed(seed);
  for (c10::DeviceIndex i = 0; i < at::globalContext().getAcceleratorHooksInterface().deviceCount(); ++i)
    at::Generator(at::globalContext().defaultGenerator(sim::device(i))).set_current_seed(seed);
}

/// Puts a run on one device: the CPU, or a simulated one.
inline void set_device(TrainerOptions& options, const at::Device& device) {
  if (device.is_cpu()) return;
  options.accelerator = "sim";
  options.devices = std::vector<int64_t>{device.index()};
}

}  // namespace levin::testing
