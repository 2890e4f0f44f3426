#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace levin::nn::functional {

struct LinearCrossEntropyOptions {
  at::Tensor bias = {};           ///< [classes]; undefined: none
  at::Tensor class_weights = {};  ///< [classes], a factor of each target's loss; undefined: 1
  int64_t ignore_index = -100;    ///< targets that do not count
  double label_smoothing = 0;     ///< share of the target that all classes divide
  double z_loss = 0;              ///< factor of the mean squared log of the softmax's denominator, which is added
  bool sum = false;               ///< the sum over targets; false: the mean, by class_weights
  int64_t chunk = 0;              ///< rows whose logits are in memory at once; 0: by the number of classes
};

/// Returns the cross-entropy of the logits `input` · `weight`ᵀ against classes, without the logits of all rows in
/// memory: rows go through in chunks, and their gradients are computed with the loss, as in Hsu et al., "Liger Kernel:
/// Efficient Triton Kernels for LLM Training", 2024. `input` [..., features], `weight` [classes, features], `target`
/// [...] of classes, int64. Equal to torch::nn::functional::cross_entropy of the logits to rounding, gradients too.
/// Autocast takes part as in torch::nn::functional::linear; sums are in float32 at least. What is not trained costs
/// nothing. Throws levin::Error where sizes do not fit, and on CPUs for a class that does not exist.
at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options = {});

}  // namespace levin::nn::functional
