#include "tests/support/sim_device/sim_accelerator.h"

#include "tests/support/sim_device/sim_device.h"
#include "tests/support/sim_device/sim_graph_recorder.h"

#include <levin/core/accelerators/accelerator_registry.h>

#include <memory>

namespace levin::testing::sim {

SimAccelerator::SimAccelerator() : Accelerator("sim", kDeviceType) {}

bool SimAccelerator::has_started() const {
  for (c10::DeviceIndex i = 0; i < Hardware::instance().options().devices; ++i)
    if (Hardware::instance().is_started(i)) return true;
  return false;
}

GraphSupport SimAccelerator::make_graph_recorder(const at::Device& device) const {
  return {.recorder = std::make_unique<SimGraphRecorder>(device), .why_not = ""};
}

void install_accelerator(const HardwareOptions& options) {
  [[maybe_unused]] static const bool installed = [&] {
    install(options);
    AcceleratorRegistry::instance().add(std::make_unique<SimAccelerator>());
    return true;
  }();
}

}  // namespace levin::testing::sim
