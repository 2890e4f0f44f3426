#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace levin {

/// Copies tensors of the host to one device beside what the device computes. An interface, so that tests can do without
/// a device.
class CopyStream {
 public:
  virtual ~CopyStream() = default;

  /// Whether neither the host nor the device's current stream waits while this tensor of the host is copied: it is in
  /// page-locked memory, without gaps.
  virtual bool can_copy(const at::Tensor& host) const = 0;
  /// Starts copies behind all work that the current stream has been given, and beside all that follows. A copy must be
  /// neither read nor freed before wait(). Throws c10::OutOfMemoryError, with nothing started, where the device has no
  /// room.
  virtual std::vector<at::Tensor> copy(const std::vector<at::Tensor>& host) = 0;
  /// What the current stream is given from here on finds the copy complete; it may be freed as any other tensor. The
  /// host does not wait.
  virtual void wait(const at::Tensor& copy) = 0;

  /// The side stream of a device; nullptr where there is none, as on a CPU.
  static std::unique_ptr<CopyStream> of(const at::Device& device);
};

}  // namespace levin
