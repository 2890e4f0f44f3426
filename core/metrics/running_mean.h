#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/metric.h>

#include <cstdint>

namespace levin::metrics {

struct RunningMeanOptions {
  int64_t window = 5;  ///< updates that count

  static void describe(Schema<RunningMeanOptions>& schema);
};

/// Mean of the values of the last `window` updates: over ranks, of those with the last numbers on any of them. Keeps 24
/// bytes an update until reset, so that ranks with different numbers of updates fit together.
class RunningMean : public Metric {
 public:
  using Options = RunningMeanOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit RunningMean(const Options& options = {});

  /// Adds every element of a tensor of any shape.
  RunningMean& update(const at::Tensor& value);
  RunningMean& update(double value);

  /// Returns a scalar, float64; NaN before any update and where a value that counts is NaN.
  at::Tensor compute() const override;

 private:
  Options options_;
};

}  // namespace levin::metrics
