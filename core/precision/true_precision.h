#pragma once

#include <levin/core/precision/precision.h>

#include <c10/core/ScalarType.h>

namespace levin {

/// All floating-point parameters, inputs and arithmetic in one type, and the buffers that belong to them: all but those
/// in double precision of a module whose own parameters are not.
class TruePrecision : public Precision {
 public:
  explicit TruePrecision(at::ScalarType type) : type_(type) {}

  /// Returns "64-true", "32-true", "16-true" or "bf16-true".
  std::string name() const override;
  bool is_half() const override { return type_ == at::kHalf || type_ == at::kBFloat16; }
  void set_up(const at::Device& device) override;
  void convert_module(torch::nn::Module& module) override;
  at::Tensor convert_input(const at::Tensor& tensor) const override;
  ForwardSettings enter_forward() override;
  void exit_forward(const ForwardSettings& before) override;

 protected:
  /// Throws levin::Error when a device lacks the hardware for a type. CPUs have all types.
  void require_type(const at::Device& device, at::ScalarType type) const;

 private:
  at::ScalarType type_;
};

/// "64-true" under its name in YAML.
class Float64Precision : public TruePrecision {
 public:
  Float64Precision() : TruePrecision(at::kDouble) {}
};

/// "32-true" under its name in YAML.
class Float32Precision : public TruePrecision {
 public:
  Float32Precision() : TruePrecision(at::kFloat) {}
};

/// "16-true": half the memory of single precision. The optimizer's state is in 16 bits too, and small updates of large
/// weights are lost: mixed precision is the safer choice.
class Float16Precision : public TruePrecision {
 public:
  Float16Precision() : TruePrecision(at::kHalf) {}
};

/// "bf16-true": as 16-true, with the range of float and fewer digits.
class BFloat16Precision : public TruePrecision {
 public:
  BFloat16Precision() : TruePrecision(at::kBFloat16) {}
};

}  // namespace levin
