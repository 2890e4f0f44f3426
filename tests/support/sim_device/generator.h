#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

namespace levin::testing::sim {

/// The random generator of a simulated device: a CPU generator of its own, so that the same seed gives the same numbers
/// as on the CPU.
class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex device);

  /// The generator that CPU kernels draw from.
  const at::Generator& cpu() const { return cpu_; }

  void set_current_seed(uint64_t seed) override { cpu_.set_current_seed(seed); }
  uint64_t current_seed() const override { return cpu_.current_seed(); }
  uint64_t seed() override { return cpu_.seed(); }
  void set_offset(uint64_t offset) override { cpu_.set_offset(offset); }
  uint64_t get_offset() const override { return cpu_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { cpu_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu_.unsafeGetGeneratorImpl()->get_state(); }

  /// That of the process for a device.
  static const at::Generator& default_of(c10::DeviceIndex device);

 private:
  DeviceGenerator* clone_impl() const override;

  mutable at::Generator cpu_;
};

}  // namespace levin::testing::sim
