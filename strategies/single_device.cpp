#include <levin/strategies/single_device.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/nn/move_to_device.h>
#include <levin/strategies/ranks/rank_options.h>

namespace levin {

void SingleDeviceOptions::describe(Schema<SingleDeviceOptions>& schema) { describe_hang_timeout(schema); }

void SingleDevice::setup_environment(const StrategySetup& setup) {
  LEVIN_CHECK(setup.devices.size() == 1, "single_device was given several devices");
  rank_.begin(setup.devices.front(), setup.rank_status, options_.hang_timeout);
}

GraphSupport SingleDevice::graph_support() {
  return accelerator_of(rank_.device()).make_graph_recorder(rank_.device());
}

void SingleDevice::setup_module(Module& module) { move_to_device(module, rank_.device()); }

}  // namespace levin
