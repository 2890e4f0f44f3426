#pragma once

#include <levin/core/accelerators/copy_stream.h>
#include <levin/core/accelerators/graph_recorder.h>
#include <levin/core/accelerators/memory_stats.h>
#include <levin/core/accelerators/pci_address.h>
#include <levin/core/accelerators/peak_flops.h>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// A kind of device: what Levin asks of it beyond LibTorch's operators. One object serves all devices of its kind for
/// as long as the process lives; any thread may call it. The defaults serve whatever LibTorch knows as an accelerator.
class Accelerator {
 public:
  Accelerator(std::string name, at::DeviceType type) : name_(std::move(name)), type_(type) {}
  virtual ~Accelerator() = default;
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// The name in the option `accelerator`.
  const std::string& name() const { return name_; }
  at::DeviceType type() const { return type_; }

  // ---- Which devices there are.

  /// Returns how many this process can use. Starts no driver where that can be avoided: a process that has may not
  /// fork.
  virtual int64_t device_count() const;
  /// Returns what to do when there is none, as the hint of an error.
  virtual std::string hint_for_none() const;
  /// Returns whether this process has started the driver, which LibTorch's hooks tell (hasPrimaryContext).
  virtual bool has_started() const;
  /// Returns the addresses of all devices, in order; nothing where they have none. May start the driver.
  virtual std::vector<PciAddress> pci_addresses() const { return {}; }
  /// Returns the environment variable that says which devices a new process sees; empty where there is none.
  virtual std::string visible_devices_variable() const { return ""; }

  // ---- What a device can do.

  /// Returns the driver's name of a device.
  virtual std::string device_name(const at::Device& device) const;
  /// Returns the rate of dense matrix products of a device in 10^12 operations a second; nothing where it is not known.
  virtual std::optional<double> peak_tflops(const at::Device& device, MatrixFormat format) const;
  /// Returns why a device does not compute in a type in hardware, as "got X; valid: Y"; empty when it does.
  virtual std::string lacks_type(const at::Device& device, at::ScalarType type) const;

  // ---- Memory.

  /// Reads the memory of a device without waiting for it.
  virtual MemoryStats memory_stats(const at::Device& device) const;
  /// Begins the peak of a device's memory anew with what is allocated now.
  virtual void restart_peak(const at::Device& device) const;
  /// Gives memory back that LibTorch holds for tensors to come. May wait for the devices.
  virtual void release_cached_memory() const;
  /// Returns whether the host memory of copies to and from these devices should be page-locked.
  virtual bool uses_pinned_memory() const { return true; }

  // ---- Work.

  /// Waits until a device has done all that it was given, on all streams.
  virtual void synchronize(const at::Device& device) const;
  /// Makes a copy stream of a device; nullptr where there is none.
  virtual std::unique_ptr<CopyStream> make_copy_stream(const at::Device& device) const;
  /// Makes what records the steps of `graph`, or says why they cannot be recorded.
  virtual GraphSupport make_graph_recorder(const at::Device& device) const;

  /// Returns whether LibTorch has kernels of batch normalisation in parts for these devices (batch_norm_stats,
  /// batch_norm_gather_stats_with_counts and those of backward), which several ranks combine.
  virtual bool has_batch_norm_parts() const { return false; }

  // ---- Ranks.

  /// Returns the c10d backend that serves these devices when the option `backend` is auto: gloo, by way of the host, or
  /// one that strategies/comm/device_backends.h has.
  virtual std::string default_backend(bool one_host) const;

 private:
  const std::string name_;
  const at::DeviceType type_;
};

}  // namespace levin
