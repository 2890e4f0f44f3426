#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/metric.h>

namespace levin::metrics {

struct MeanSquaredErrorOptions {
  bool squared = true;  ///< false: the root of the mean, RMSE

  static void describe(Schema<MeanSquaredErrorOptions>& schema);
};

/// Mean of (prediction - target)² over all elements seen, in float64.
class MeanSquaredError : public Metric {
 public:
  using Options = MeanSquaredErrorOptions;

  explicit MeanSquaredError(const Options& options = {});

  /// Adds a batch of any shape. Throws levin::Error when the two shapes differ: nothing is broadcast.
  MeanSquaredError& update(const at::Tensor& predictions, const at::Tensor& targets);

  /// Returns a scalar, float64.
  at::Tensor compute() const override;

 protected:
  /// Earlier versions kept one sum of squares.
  State upgraded(const State& saved) const override;

 private:
  Options options_;
};

}  // namespace levin::metrics
