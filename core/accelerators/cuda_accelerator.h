#pragma once

#include <levin/core/accelerators/accelerator.h>

namespace levin {

/// NVIDIA's GPUs. In a LibTorch, or a Levin, without CUDA it has no devices.
class CudaAccelerator final : public Accelerator {
 public:
  CudaAccelerator() : Accelerator("cuda", at::kCUDA) {}

  /// Asks NVML, which starts no driver; where there is none, the driver.
  int64_t device_count() const override;
  std::string hint_for_none() const override;
  bool has_started() const override;
  std::vector<PciAddress> pci_addresses() const override;
  std::string visible_devices_variable() const override { return "CUDA_VISIBLE_DEVICES"; }

  std::string device_name(const at::Device& device) const override;
  std::optional<double> peak_tflops(const at::Device& device, MatrixFormat format) const override;
  std::string lacks_type(const at::Device& device, at::ScalarType type) const override;
  /// Returns whether a device of this compute capability computes in the type (half or bfloat16) in hardware.
  static bool computes_in_hardware(at::ScalarType type, int major, int minor);

  GraphSupport make_graph_recorder(const at::Device& device) const override;
  bool has_batch_norm_parts() const override { return true; }
  std::string default_backend(bool) const override { return "nccl"; }
};

}  // namespace levin
