#include "tests/support/sim_device/generator.h"

#include "tests/support/sim_device/hardware.h"
#include "tests/support/sim_device/vector_clock.h"

#include <ATen/CPUGeneratorImpl.h>

#include <vector>

namespace levin::testing::sim {

DeviceGenerator::DeviceGenerator(c10::DeviceIndex device)
    : GeneratorImpl(c10::Device(kDeviceType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      cpu_(at::detail::createCPUGenerator()) {}

DeviceGenerator* DeviceGenerator::clone_impl() const {
  auto* copy = new DeviceGenerator(device_.index());
  copy->cpu_ = cpu_.clone();
  return copy;
}

const at::Generator& DeviceGenerator::default_of(c10::DeviceIndex device) {
  static const auto* const generators = [] {
    auto* made = new std::vector<at::Generator>();
    for (c10::DeviceIndex i = 0; i < kMaximumDevices; ++i) made->push_back(at::make_generator<DeviceGenerator>(i));
    return made;
  }();
  Hardware::instance().check_index(device);
  return generators->at(static_cast<size_t>(device));
}

}  // namespace levin::testing::sim
