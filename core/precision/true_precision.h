#pragma once

#include <levin/core/precision/precision.h>

#include <c10/core/ScalarType.h>

namespace levin {

/// All floating-point parameters, buffers, inputs and arithmetic in one type: "64-true", "32-true".
class TruePrecision : public Precision {
 public:
  explicit TruePrecision(at::ScalarType type) : type_(type) {}

  std::string name() const override;
  void convert_module(torch::nn::Module& module) override;
  at::Tensor convert_input(const at::Tensor& tensor) const override;
  void enter_forward() override;
  void exit_forward() override;

 private:
  at::ScalarType type_;
};

/// "32-true" under its name in YAML.
class Float32Precision : public TruePrecision {
 public:
  Float32Precision() : TruePrecision(at::kFloat) {}
};

/// "64-true" under its name in YAML.
class Float64Precision : public TruePrecision {
 public:
  Float64Precision() : TruePrecision(at::kDouble) {}
};

}  // namespace levin
