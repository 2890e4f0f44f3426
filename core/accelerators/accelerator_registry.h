#pragma once

#include <levin/core/accelerators/accelerator.h>
#include <levin/core/base/mutex.h>

#include <memory>
#include <string>
#include <vector>

namespace levin {

/// The kinds of devices that the option `accelerator` may name: cpu, cuda, and those that a program adds.
class AcceleratorRegistry {
 public:
  static AcceleratorRegistry& instance();

  /// Adds a kind. Throws Error when its name or its type is there already.
  void add(std::unique_ptr<Accelerator> accelerator);
  /// Returns the kind of this name; nullptr where there is none.
  Accelerator* find(const std::string& name) const;
  /// Returns the kind of devices of a type. Throws Error when none was added.
  Accelerator& of(at::DeviceType type) const;
  /// Returns all kinds: those that were added last come first, the CPU is the last.
  std::vector<Accelerator*> all() const;

  /// Returns whether this process uses a device whose copies from the host want page-locked memory. One that it has not
  /// started is left alone: page-locking would start it.
  bool uses_pinned_memory() const;

 private:
  AcceleratorRegistry();

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Accelerator>> accelerators_ LEVIN_GUARDED_BY(mutex_);
};

/// Returns the kind of a device.
inline Accelerator& accelerator_of(const at::Device& device) {
  return AcceleratorRegistry::instance().of(device.type());
}

}  // namespace levin
