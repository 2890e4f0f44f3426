#include <levin/strategies/comm/process_group.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/strategies/comm/device_backends.h>
#include <levin/strategies/comm/gloo_backend.h>
#include <levin/strategies/comm/nccl_backend.h>
#include <levin/strategies/comm/shared_memory_backend.h>
#include <levin/strategies/comm/shared_memory_team.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace levin {
namespace {

using BackendType = c10d::ProcessGroup::BackendType;

c10::intrusive_ptr<c10d::Backend> join_shared_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const ProcessGroupOptions& options) {
  auto team = options.thread_team ? options.thread_team
                                  : make_process_team(*store, options.rank, options.world_size, options.timeout);
  return make_shared_memory_backend(std::move(team), options.rank, options.timeout);
}

}  // namespace

void prepare_c10d_environment() {
  static std::once_flag once;
  std::call_once(once, [] {
    // The flight recorder, which all groups of a process share, keeps an unlocked table of groups: thread ranks that
    // make groups at the same time crash in it. Whoever sets a size asks for it.
    const bool records = std::getenv("TORCH_FR_BUFFER_SIZE") != nullptr;
    ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
    // NCCL's watchdog would end the process (std::terminate) after an error or a time-out. BackendWatch sees what it
    // has found, aborts the communicators and lets the rank say why it ends; the watchdog cleans up if it must.
    ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
    ::setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", /*overwrite=*/0);
    // Four times this long it holds a lock that the next operation needs, for the flight recorder to be written.
    if (!records) ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "250", /*overwrite=*/0);
  });
}

std::string resolve_backend(const ProcessGroupOptions& options) {
  const bool on_cpu = options.device.is_cpu();
  const bool is_auto = options.backend == "auto";
  const std::string name = is_auto ? accelerator_of(options.device).default_backend(options.one_host) : options.backend;
  const std::vector<std::string> names = DeviceBackends::instance().option_values();
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw ConfigError(fmt::format(
        "there is no communication backend '{}'{}{}", name,
        is_auto ? fmt::format(", which {} devices ask for", at::DeviceTypeName(options.device.type(), true)) : "",
        valid_names_hint(name, names)));
  if (name == "nccl" && !is_auto) check_nccl_available();
  if (const auto backend = DeviceBackends::instance().find(name); backend && backend->serves != options.device.type())
    throw ConfigError(fmt::format("backend '{}' serves {} devices; got {}; valid there: auto, gloo{}", name,
                                  at::DeviceTypeName(backend->serves, true), on_cpu ? "the CPU" : options.device.str(),
                                  on_cpu ? ", shared_memory" : ""));
  if (name == "shared_memory") {
    if (!on_cpu)
      throw ConfigError(fmt::format("backend 'shared_memory' serves the CPU; got {}; valid there: auto, gloo, {}",
                                    options.device.str(), accelerator_of(options.device).default_backend(true)));
    if (!options.one_host)
      throw ConfigError(
          "backend 'shared_memory' serves the ranks of one host; got several hosts; valid there: auto, gloo");
  }
  return name;
}

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                          const ProcessGroupOptions& options) {
  const std::string name = resolve_backend(options);
  prepare_c10d_environment();
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, static_cast<int>(options.rank),
                                                       static_cast<int>(options.world_size));
  const auto keys_of = [&](const std::string& prefix) { return c10::make_intrusive<c10d::PrefixStore>(prefix, store); };
  BackendType type = BackendType::GLOO;
  if (name == "shared_memory") {
    type = BackendType::CUSTOM;
    group->setBackend(at::kCPU, type, join_shared_memory(keys_of("shared_memory"), options));
  } else {
    const auto gloo = make_gloo_backend(keys_of("gloo"), options);
    group->setBackend(at::kCPU, BackendType::GLOO, gloo);
    if (const auto backend = DeviceBackends::instance().find(name)) {
      type = name == "nccl" ? BackendType::NCCL : BackendType::CUSTOM;
      group->setBackend(backend->serves, type, backend->make(keys_of(name), options));
    } else {
      // Collectives bring what Gloo does not know to the host.
      for (const Accelerator* accelerator : AcceleratorRegistry::instance().all())
        if (accelerator->type() != at::kCPU) group->setBackend(accelerator->type(), BackendType::GLOO, gloo);
    }
  }
  group->setDefaultBackend(type);
  return group;
}

}  // namespace levin
