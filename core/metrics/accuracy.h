#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/class_counts.h>
#include <levin/core/metrics/metric.h>

#include <cstdint>
#include <string>

namespace levin::metrics {

struct AccuracyOptions {
  int64_t num_classes = 0;        ///< must be set
  int64_t top_k = 1;              ///< a sample is right when its label is among its k best classes
  std::string average = "micro";  ///< micro: over samples; macro: mean over classes; none: one value a class

  static void describe(Schema<AccuracyOptions>& schema);
};

/// Share of samples predicted right. The macro average leaves out classes that occur neither in labels nor in
/// predictions (with top_k above 1: not in labels), as torchmetrics does; "none" says 0 for them.
class Accuracy : public Metric {
 public:
  using Options = AccuracyOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit Accuracy(const Options& options);

  /// Adds a batch: logits or probabilities [N, C, ...], or class indices [N, ...] where top_k is 1, and labels [N,
  /// ...]. Throws levin::Error for shapes that do not fit and, on the CPU, for classes out of range; on another device,
  /// where looking would wait, compute() throws for those.
  Accuracy& update(const at::Tensor& predictions, const at::Tensor& labels);

  /// Returns float64: a scalar, or [num_classes] without an average.
  at::Tensor compute() const override;

  std::string update_key() const override;

 private:
  void add_micro_counts(const detail::ClassPairs& pairs);

  Options options_;
  detail::Average average_;
};

}  // namespace levin::metrics
