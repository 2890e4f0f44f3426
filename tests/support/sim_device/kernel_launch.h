#pragma once

#include "tests/support/sim_device/device_memory.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace levin::testing::sim {

/// One kernel: makes tensors of the device accessible to a kernel of the CPU for as long as it lives, and notes on the
/// current stream what it touches. The order is: read() and write() for each tensor, start(), the kernel, result() for
/// each new tensor. It holds the hardware's mutex.
class KernelLaunch {
 public:
  explicit KernelLaunch(std::string name);
  ~KernelLaunch();
  KernelLaunch(const KernelLaunch&) = delete;
  KernelLaunch& operator=(const KernelLaunch&) = delete;

  /// A tensor on the CPU with the same memory. Tensors of the host are returned as they are. Throws when tensors are on
  /// different devices.
  at::Tensor read(const at::Tensor& tensor) { return alias(tensor, /*write=*/false); }
  at::Tensor write(const at::Tensor& tensor) { return alias(tensor, /*write=*/true); }
  /// For kernels that get no tensor of a device.
  void set_device(c10::DeviceIndex device) { device_ = device; }
  /// Lets tensors of the host with dimensions take part, as `index` does.
  void allow_host_tensors() { allows_host_tensors_ = true; }
  /// Copies from the host that were put off stay so: the kernel is such a copy.
  void keep_late_fills() { keeps_late_fills_ = true; }

  /// Throws when a tensor of the host with dimensions is among those of a device.
  void start();
  /// Moves what the kernel has made to the device.
  at::Tensor result(const at::Tensor& cpu);

  /// That of the tensors; of none, the calling thread's current one.
  c10::DeviceIndex device() const;
  size_t stream() const { return stream_; }  ///< after start()
  uint64_t work() const { return work_; }    ///< after start(): its number on the stream

 private:
  struct Use {
    Block* block;
    ByteRange range;
    bool write;
  };
  at::Tensor alias(const at::Tensor& tensor, bool write);
  c10::Storage alias(const c10::Storage& storage);

  const std::string name_;
  std::unique_lock<std::recursive_mutex> lock_;
  std::optional<c10::DeviceIndex> device_;
  bool has_device_tensors_ = false;
  bool has_host_tensors_ = false;
  bool allows_host_tensors_ = false;
  bool keeps_late_fills_ = false;
  std::map<const c10::StorageImpl*, c10::Storage> storages_;
  std::vector<Block*> opened_;
  std::vector<Use> uses_;
  size_t stream_ = 0;
  uint64_t work_ = 0;
};

}  // namespace levin::testing::sim
