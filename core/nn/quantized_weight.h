#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

namespace levin::detail {

/// The weight [out, in] of a frozen linear layer in few bits, as buffers, which no conversion to another floating type
/// changes:
///
/// nf4: 4 bits a number in blocks of 64 (nf4.h) of the rows one after the other, whose scales, less their mean, have 8
/// bits in blocks of 256, by the dynamic tree of Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022,
/// arXiv:2110.02861. Values are those of bitsandbytes.
/// int8: 8 bits a number, with the greatest magnitude of each row at 127.
class QuantizedWeight : public torch::nn::Module {
 public:
  /// Throws levin::Error where a number is infinite or NaN. `name`: of the weight, for messages.
  QuantizedWeight(const std::string& name, const at::Tensor& weight, std::string format);

  const std::string& format() const { return format_; }
  at::Device device() const { return codes_.device(); }
  int64_t bytes() const;
  /// Returns the weight in a floating type.
  at::Tensor dequantize(at::ScalarType type) const;
  /// Returns input [N, in] · weightᵀ + bias. Backward needs neither the input nor the weight in memory. `weight`: this.
  static at::Tensor linear(const std::shared_ptr<const QuantizedWeight>& weight, const at::Tensor& input,
                           const at::Tensor& bias);

  // Codes keep their types.
  void to(at::Device device, at::ScalarType type, bool non_blocking = false) override;
  void to(at::ScalarType type, bool non_blocking = false) override;
  void to(at::Device device, bool non_blocking = false) override;

 private:
  at::Tensor scales_of_blocks() const;

  std::string format_;
  int64_t rows_, columns_;
  at::Tensor codes_;         ///< nf4: uint8, two a byte; int8: int8 [out, in]
  at::Tensor scales_;        ///< nf4: uint8, one a block; int8: double [out], of float32's precision
  at::Tensor group_scales_;  ///< nf4: double, one for 256 scales, of float32's precision
  at::Tensor mean_scale_;    ///< nf4: double [1]
};

}  // namespace levin::detail
