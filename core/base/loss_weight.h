#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <type_traits>

namespace levin {

/// What a loss counts among the others of its optimizer step: the number of what it is a mean of, such as examples or
/// tokens. A number, or a tensor of one element, which may lie on a device: nothing here waits for it.
class LossWeight {
 public:
  LossWeight() = default;
  template <class Number>
  requires std::is_arithmetic_v<Number> LossWeight(Number number)
      : number_(static_cast<double>(number)) {}  // NOLINT(google-explicit-constructor)
  LossWeight(at::Tensor tensor);                 // NOLINT(google-explicit-constructor)

  bool defined() const { return number_ || tensor_.defined(); }
  /// Its value where the host has it: of a number, or of a tensor of the CPU.
  std::optional<double> on_host() const;
  /// The tensor it was made of; undefined for a number.
  const at::Tensor& tensor() const { return tensor_; }
  /// As a tensor without dimensions, of float64 where the device has that type, else of float32.
  at::Tensor on(at::Device device) const;

  /// Throws levin::Error where the host sees that it is no weight: negative, infinite or NaN.
  void require_valid() const;

  /// Returns its share of a sum of weights, on a device and of a type; 0 of a sum of 0.
  at::Tensor share_of(const LossWeight& sum, at::Device device, at::ScalarType type) const;

  LossWeight& operator+=(const LossWeight& other);

 private:
  std::optional<double> number_;
  at::Tensor tensor_;
};

}  // namespace levin
