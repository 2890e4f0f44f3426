#include <levin/strategies/comm/process_group.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/gloo_backend.h>
#include <levin/strategies/comm/nccl_backend.h>
#include <levin/strategies/comm/shared_memory_backend.h>
#include <levin/strategies/comm/shared_memory_team.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>

namespace levin {
namespace {

using BackendType = c10d::ProcessGroup::BackendType;

const std::array<std::string, 4> kBackendNames = {"auto", "gloo", "nccl", "shared_memory"};

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
    ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  });
}

std::string resolve_backend(const ProcessGroupOptions& options) {
  const std::string& name = options.backend;
  if (std::find(kBackendNames.begin(), kBackendNames.end(), name) == kBackendNames.end())
    throw ConfigError(
        fmt::format("there is no communication backend '{}'{}", name, valid_names_hint(name, kBackendNames)));
  const bool on_cpu = options.device.is_cpu();
  if (name == "auto") return accelerator_of(options.device).default_backend(options.one_host);
  if (name == "nccl") {
    check_nccl_available();
    if (on_cpu)
      throw ConfigError("backend 'nccl' serves CUDA devices; got the CPU; valid there: auto, gloo, shared_memory");
  }
  if (name == "shared_memory") {
    if (!on_cpu)
      throw ConfigError(fmt::format("backend 'shared_memory' serves the CPU; got {}; valid there: auto, gloo, nccl",
                                    options.device.str()));
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
  const auto keys_of = [&](const char* prefix) { return c10::make_intrusive<c10d::PrefixStore>(prefix, store); };
  BackendType type = BackendType::GLOO;
  if (name == "shared_memory") {
    type = BackendType::CUSTOM;
    group->setBackend(at::kCPU, type, join_shared_memory(keys_of("shared_memory"), options));
  } else {
    const auto gloo = make_gloo_backend(keys_of("gloo"), options);
    group->setBackend(at::kCPU, BackendType::GLOO, gloo);
    if (name == "nccl") {
      type = BackendType::NCCL;
      group->setBackend(options.device.type(), type, make_nccl_backend(keys_of("nccl"), options));
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
