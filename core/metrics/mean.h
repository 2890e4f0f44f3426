#pragma once

#include <levin/core/metrics/metric.h>

namespace levin::metrics {

/// Weighted mean Σ wᵢ·vᵢ / Σ wᵢ of all values seen, summed in float64. NaN values make it NaN.
class Mean : public Metric {
 public:
  Mean();

  /// Adds every element of `value`, each with `weight`.
  Mean& update(const at::Tensor& value, double weight = 1);
  /// Adds every element of `value`; `weight` has its shape or broadcasts to it. Throws levin::Error otherwise.
  Mean& update(const at::Tensor& value, const at::Tensor& weight);
  Mean& update(double value, double weight = 1);

  /// Returns a scalar, float64.
  at::Tensor compute() const override;
};

}  // namespace levin::metrics
