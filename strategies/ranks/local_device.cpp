#include <levin/strategies/ranks/local_device.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin {

at::Device device_of_local_rank(const std::vector<at::Device>& devices, int64_t local_rank) {
  if (local_rank < std::ssize(devices)) return devices[static_cast<size_t>(local_rank)];
  const at::Device& first = devices.front();
  if (first.is_cpu()) return first;
  const Accelerator& accelerator = accelerator_of(first);
  const int64_t visible = accelerator.device_count();
  // SLURM's --gpus-per-task=1 and wrappers of mpirun set the variable for each rank.
  if (visible == 1) return first;
  if (local_rank >= visible)
    throw ConfigError(
        fmt::format("a launcher has started a rank {0} on this host, which shows it {1} devices of '{2}'; valid: one "
                    "rank for each device, or one device shown to each rank; hint: start fewer ranks a host",
                    local_rank, visible, accelerator.name()));
  if (devices.size() == 1 && first.index() > 0)
    throw ConfigError(
        fmt::format("trainer.devices names {}, and a launcher has started several ranks on this host; hint: name as "
                    "many devices as there are ranks, or leave it out",
                    first.str()));
  return at::Device(first.type(), static_cast<at::DeviceIndex>(local_rank));
}

void refuse_shared_devices(const std::vector<at::Device>& devices, std::string_view reason) {
  for (auto device = devices.begin(); device != devices.end(); ++device)
    if (!device->is_cpu() && std::find(devices.begin(), device, *device) != device)
      throw ConfigError(fmt::format("trainer.devices names {} twice, and {}", device->str(), reason));
}

}  // namespace levin
