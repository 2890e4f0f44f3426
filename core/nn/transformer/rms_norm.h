#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

namespace levin::nn {

struct RMSNormOptions {
  int64_t size = 0;                ///< features that are normalized together: the last dimension
  std::optional<double> eps = {};  ///< added to the mean square; nullopt: the epsilon of the input's type
  bool elementwise_affine = true;  ///< whether there is a weight
  bool weight_is_offset = false;   ///< the factor is 1 + weight, as in Gemma; the weight begins as zeros
};

/// Divides the features of [..., size] by their root mean square and multiplies them by a weight [size]: Zhang and
/// Sennrich, "Root Mean Square Layer Normalization", 2019. As torch.nn.RMSNorm. Not a unit: its few parameters are
/// gathered with those of the unit around it.
class RMSNormImpl : public torch::nn::Module {
 public:
  explicit RMSNormImpl(const RMSNormOptions& options);
  explicit RMSNormImpl(int64_t size) : RMSNormImpl(RMSNormOptions{.size = size}) {}
  at::Tensor forward(const at::Tensor& x);
  /// Normalizes rows of the norm's size in place, contiguous float32 on the CPU, without gradients.
  void normalize_(const at::Tensor& x) const;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor weight;  ///< undefined without elementwise_affine

 private:
  RMSNormOptions options_;
};
TORCH_MODULE(RMSNorm);

}  // namespace levin::nn
