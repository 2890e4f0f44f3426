#include <levin/core/options/rank_count.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/options/registries.h>

#include <iterator>

namespace levin {

int64_t count_ranks(int64_t devices, int64_t num_nodes) {
  const auto environment = registries().detect_environment();
  if (environment != nullptr && environment->world_size() > 1) return environment->world_size();
  return devices * num_nodes;
}

int64_t count_ranks(const TrainerOptions& options) {
  const auto devices = resolve_devices(options.accelerator, options.devices, options.gpus);
  return count_ranks(std::ssize(devices), options.num_nodes);
}

}  // namespace levin
