#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace levin {

/// Copies tensors of the host to one device while the device computes. An interface, so that tests need no device.
class CopyStream {
 public:
  virtual ~CopyStream() = default;

  /// Returns whether a tensor of the host can be copied without the host or the device's current stream waiting: it is
  /// page-locked and its elements fill its memory without gaps.
  virtual bool can_copy(const at::Tensor& host) const = 0;
  /// Starts copies after the work already on the current stream, in parallel with later work. A copy must be neither
  /// read nor freed before wait(). Throws c10::OutOfMemoryError, with nothing started, when the device has no room.
  virtual std::vector<at::Tensor> copy(const std::vector<at::Tensor>& host) = 0;
  /// Makes later work of the current stream wait for the copy, which may then be freed as any other tensor. The host
  /// does not wait.
  virtual void wait(const at::Tensor& copy) = 0;

  /// Makes a copy stream of a device; nullptr where there is none, as on a CPU.
  static std::unique_ptr<CopyStream> of(const at::Device& device);
};

}  // namespace levin
