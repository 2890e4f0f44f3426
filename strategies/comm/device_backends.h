#pragma once

#include <levin/core/base/mutex.h>
#include <levin/strategies/comm/process_group_options.h>

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace levin {

/// The backends of c10d that carry the tensors of one kind of device, by their names in the option `backend`: nccl, and
/// those that a program adds. Accelerator::default_backend names the one that `auto` takes.
class DeviceBackends {
 public:
  /// Joins the ranks that have the same store; every rank calls it.
  using Factory = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store,
                                                                  const ProcessGroupOptions& options)>;
  struct DeviceBackend {
    at::DeviceType serves;
    Factory make;
  };

  static DeviceBackends& instance();

  /// Adds a backend, before a strategy is made. Throws Error for a name that is taken.
  void add(const std::string& name, at::DeviceType serves, Factory make);
  /// Returns the backend of this name; nothing where there is none.
  std::optional<DeviceBackend> find(const std::string& name) const;
  /// Returns all values of the option `backend`: auto, then these names and those of the CPU's, in alphabetical order.
  std::vector<std::string> option_values() const;

 private:
  DeviceBackends();

  mutable Mutex mutex_;
  std::map<std::string, DeviceBackend> backends_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace levin
