#pragma once

#include <ATen/core/Tensor.h>

namespace levin {

class Collective;

/// Running statistics of a module; undefined where it keeps none.
struct RunningStatistics {
  at::Tensor mean;
  at::Tensor variance;
  double momentum = 0;
};

/// Statistics of each channel over the batches of all ranks.
struct BatchStatistics {
  at::Tensor mean;
  at::Tensor spread;  ///< the biased variance; with kernels of parts 1 / sqrt(variance + eps)
  at::Tensor counts;  ///< elements of a channel, of each rank
};

/// Gradients of BatchNorm's arguments; undefined where nobody needs them.
struct BatchNormGradients {
  at::Tensor input;
  at::Tensor weight;  ///< of this rank's batch alone; gradients of parameters are reduced elsewhere
  at::Tensor bias;
};

/// Batch normalisation over ranks, on one kind of device. The second dimension of the input is that of the channels.
/// Weight and bias may be undefined.
class BatchNormOverRanks {
 public:
  virtual ~BatchNormOverRanks() = default;

  /// Runs one all-gather and updates the running statistics, with the unbiased variance.
  virtual BatchStatistics statistics(const at::Tensor& input, double eps, RunningStatistics& running,
                                     Collective& ranks) const = 0;
  virtual at::Tensor normalise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                               const BatchStatistics& statistics, double eps) const = 0;
  /// Runs one all-reduce where the input needs a gradient. Weight and bias get theirs in any case.
  virtual BatchNormGradients backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                                      const BatchStatistics& statistics, double eps, bool input_needs_gradient,
                                      Collective& ranks) const = 0;

  /// Returns the implementation for the device of a tensor.
  static const BatchNormOverRanks& of(const at::Tensor& tensor);
};

/// The type of statistics: half precision is computed in single precision, as LibTorch's own kernels do.
at::ScalarType arithmetic_type(const at::Tensor& input);
/// Converts a tensor; an undefined one stays so.
at::Tensor as_type(const at::Tensor& tensor, at::ScalarType type);

/// For devices without the kernels in parts, the CPU among them.
const BatchNormOverRanks& cpu_batch_norm_over_ranks();
const BatchNormOverRanks& cuda_batch_norm_over_ranks();

}  // namespace levin
