#pragma once

#include <levin/core/metrics/metric.h>

#include <functional>

namespace levin::metrics {

/// Options of StackedValues: a function.
struct StackedValuesOptions {
  /// Returns one number of all values, [values], float64, on their device: in the order of updates, rank after rank.
  std::function<at::Tensor(const at::Tensor& values)> reduce = {};
};

/// A reduction of one's own, where LogReduce has none: keeps the values of all updates until reset, 8 bytes each, and
/// gives what the function makes of them. The median loss of an epoch's batches, on all ranks:
///
///     levin::metrics::StackedValues median_{{.reduce = [](const at::Tensor& values) { return values.median(); }}};
///     ...
///     log("median_loss", median_.update(loss), {.on_step = false, .on_epoch = true});
class StackedValues : public Metric {
 public:
  using Options = StackedValuesOptions;

  /// Throws levin::Error when there is no function.
  explicit StackedValues(Options options);

  /// Adds every element of a tensor of any shape.
  StackedValues& update(const at::Tensor& value);
  StackedValues& update(double value);

  /// Returns what the function returns; NaN before any update.
  at::Tensor compute() const override;

 private:
  Options options_;
};

}  // namespace levin::metrics
