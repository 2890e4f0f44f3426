#include <levin/strategies/comm/device_backends.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/strategies/comm/nccl_backend.h>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <utility>

namespace levin {

DeviceBackends::DeviceBackends() {
  add("nccl", AcceleratorRegistry::instance().find("cuda")->type(), make_nccl_backend);
}

DeviceBackends& DeviceBackends::instance() {
  // Never destroyed: threads may ask as long as the process lives.
  static auto& backends = *new DeviceBackends;
  return backends;
}

void DeviceBackends::add(const std::string& name, at::DeviceType serves, Factory make) {
  const std::vector<std::string> taken = option_values();
  if (name.empty() || std::find(taken.begin(), taken.end(), name) != taken.end())
    throw Error("comm", fmt::format("a communication backend is added as '{}'; valid: a name that is none of {}", name,
                                    join(taken)));
  const MutexLock lock(mutex_);
  backends_.emplace(name, DeviceBackend{.serves = serves, .make = std::move(make)});
}

std::optional<DeviceBackends::DeviceBackend> DeviceBackends::find(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto found = backends_.find(name);
  return found == backends_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> DeviceBackends::option_values() const {
  std::vector<std::string> names = {"gloo", "shared_memory"};
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, backend] : backends_) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  names.insert(names.begin(), "auto");
  return names;
}

}  // namespace levin
