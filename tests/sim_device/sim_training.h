#pragma once

#include "tests/support/sim_device/sim_device.h"
#include "tests/support/tiny.h"

#include <ATen/Context.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/thread_generator.h>
#include <levin/strategies/single_device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace levin::testing {

/// Seeds the generators of the CPU and of all simulated devices alike: a module then draws the same numbers on each.
inline void seed_alike(uint64_t seed) {
  at::Generator(default_cpu_generator()).set_current_seed(seed);
  for (c10::DeviceIndex i = 0; i < at::globalContext().getAcceleratorHooksInterface().deviceCount(); ++i)
    at::Generator(at::globalContext().defaultGenerator(sim::device(i))).set_current_seed(seed);
}

/// Single device whose device is a simulated one.
class OnSim : public SingleDevice {
 public:
  explicit OnSim(at::Device device) : device_(device) {}
  void setup_environment(const StrategySetup& given) override {
    StrategySetup setup = given;
    setup.devices = {device_};
    SingleDevice::setup_environment(setup);
  }

 private:
  at::Device device_;
};

inline void set_device(TrainerOptions& options, const at::Device& device) {
  if (!device.is_cpu()) options.strategy = Spec<Strategy>(std::shared_ptr<Strategy>(std::make_shared<OnSim>(device)));
}

}  // namespace levin::testing
