#include <levin/strategies/single_device.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/single_process.h>
#include <levin/core/interfaces/module.h>
#include <levin/strategies/environments/local_environment.h>
#include <levin/strategies/launchers/in_process_launcher.h>

namespace levin {

SingleDevice::SingleDevice()
    : launcher_(std::make_unique<InProcessLauncher>()),
      environment_(std::make_unique<LocalEnvironment>()),
      collective_(make_single_process_collective()) {}

SingleDevice::~SingleDevice() = default;

Launcher& SingleDevice::launcher() { return *launcher_; }

ClusterEnvironment& SingleDevice::environment() { return *environment_; }

void SingleDevice::setup_environment(const StrategySetup& setup) {
  LEVIN_CHECK(setup.devices.size() == 1, "single_device was given several devices");
  device_ = setup.devices.front();
}

void SingleDevice::setup_module(Module& module) { module.to(device_); }

}  // namespace levin
