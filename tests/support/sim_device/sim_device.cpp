#include "tests/support/sim_device/sim_device.h"

#include "tests/support/sim_device/autocast.h"
#include "tests/support/sim_device/batch_norm_kernels.h"
#include "tests/support/sim_device/copy_kernels.h"
#include "tests/support/sim_device/cpu_fallback.h"
#include "tests/support/sim_device/device_guard.h"
#include "tests/support/sim_device/device_hooks.h"
#include "tests/support/sim_device/device_memory.h"
#include "tests/support/sim_device/layer_kernels.h"
#include "tests/support/sim_device/memory_kernels.h"
#include "tests/support/sim_device/optimizer_kernels.h"
#include "tests/support/sim_device/pinned_memory.h"
#include "tests/support/sim_device/recurrent_kernels.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

namespace levin::testing::sim {
namespace {

void register_operators() {
  constexpr auto kKey = c10::DispatchKey::PrivateUse1;
  // For the life of the process: a thread may still be in a kernel while static objects are destroyed.
  static auto* const all = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  static auto* const operators = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  register_memory_kernels(*operators);
  register_copy_kernels(*operators);
  register_layer_kernels(*operators);
  register_batch_norm_kernels(*operators);
  register_recurrent_kernels(*operators);
  register_optimizer_kernels(*operators);
  register_cpu_fallback(*all, *operators);
  register_autocast();
}

}  // namespace

void install(const HardwareOptions& options) {
  [[maybe_unused]] static const bool installed = [&] {
    Hardware::instance().configure(options);
    c10::register_privateuse1_backend("sim");
    static DeviceGuardImpl guard;
    c10::impl::registerDeviceGuard(kDeviceType, &guard);
    c10::SetAllocator(kDeviceType, &DeviceMemory::instance(), /*priority=*/1);
    at::setHostAllocator(kDeviceType, &PinnedMemory::instance(), /*priority=*/1);
    static DeviceHooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    register_operators();
    return true;
  }();
}

Report report() { return Ledger::instance().report(); }

void reset_report() { Ledger::instance().reset(); }

at::Device device(c10::DeviceIndex index) { return {kDeviceType, index}; }

}  // namespace levin::testing::sim
