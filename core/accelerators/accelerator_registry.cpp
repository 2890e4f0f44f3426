#include <levin/core/accelerators/accelerator_registry.h>

#include <levin/core/accelerators/cpu_accelerator.h>
#include <levin/core/accelerators/cuda_accelerator.h>
#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin {

AcceleratorRegistry::AcceleratorRegistry() {
  add(std::make_unique<CpuAccelerator>());
  add(std::make_unique<CudaAccelerator>());
}

AcceleratorRegistry& AcceleratorRegistry::instance() {
  // Never destroyed: threads may ask as long as the process lives.
  static auto& registry = *new AcceleratorRegistry;
  return registry;
}

void AcceleratorRegistry::add(std::unique_ptr<Accelerator> accelerator) {
  LEVIN_CHECK(accelerator != nullptr, "there is an accelerator to add");
  const MutexLock lock(mutex_);
  for (const auto& other : accelerators_)
    if (other->name() == accelerator->name() || other->type() == accelerator->type())
      throw Error("accelerator",
                  fmt::format("'{}' ({}) is added, but there is '{}' ({}); valid: a name and a device type of its own",
                              accelerator->name(), at::DeviceTypeName(accelerator->type(), true), other->name(),
                              at::DeviceTypeName(other->type(), true)));
  accelerators_.push_back(std::move(accelerator));
}

Accelerator* AcceleratorRegistry::find(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto found =
      std::find_if(accelerators_.begin(), accelerators_.end(), [&](const auto& one) { return one->name() == name; });
  return found == accelerators_.end() ? nullptr : found->get();
}

Accelerator& AcceleratorRegistry::of(at::DeviceType type) const {
  const MutexLock lock(mutex_);
  for (const auto& accelerator : accelerators_)
    if (accelerator->type() == type) return *accelerator;
  throw Error("accelerator",
              fmt::format("nothing is known of devices of type {}; hint: add an Accelerator for them, see "
                          "docs/extending.md",
                          at::DeviceTypeName(type, true)));
}

std::vector<Accelerator*> AcceleratorRegistry::all() const {
  const MutexLock lock(mutex_);
  std::vector<Accelerator*> all;
  for (auto one = accelerators_.rbegin(); one != accelerators_.rend(); ++one) all.push_back(one->get());
  return all;
}

bool AcceleratorRegistry::uses_pinned_memory() const {
  const std::vector<Accelerator*> kinds = all();
  return std::any_of(kinds.begin(), kinds.end(),
                     [](const Accelerator* kind) { return kind->uses_pinned_memory() && kind->has_started(); });
}

}  // namespace levin
