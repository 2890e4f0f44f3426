#pragma once

#include <levin/core/metrics/metric.h>

namespace levin::metrics {

/// Least of all values seen. All compute() here give float64, and NaN when a value was NaN.
class Min : public Metric {
 public:
  Min();
  /// Adds every element of a tensor of any shape.
  Min& update(const at::Tensor& value);
  Min& update(double value);
  /// Returns a scalar; infinity before any update.
  at::Tensor compute() const override;
};

/// Largest of all values seen.
class Max : public Metric {
 public:
  Max();
  /// Adds every element of a tensor of any shape.
  Max& update(const at::Tensor& value);
  Max& update(double value);
  /// Returns a scalar; minus infinity before any update.
  at::Tensor compute() const override;
};

/// Least and largest of all values seen, such as those that another metric has at each epoch's end.
class MinMax : public Metric {
 public:
  MinMax();
  /// Adds every element of a tensor of any shape.
  MinMax& update(const at::Tensor& value);
  MinMax& update(double value);
  /// Adds the present value of another metric.
  MinMax& update(const Metric& metric) { return update(metric.compute()); }
  /// Returns [least, largest]; infinity and minus infinity before any update.
  at::Tensor compute() const override;
};

}  // namespace levin::metrics
