#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/score_metric.h>

#include <cstdint>
#include <string>

namespace levin::metrics {

struct AurocOptions {
  int64_t num_classes = 2;
  int64_t thresholds = 0;         ///< 0: keeps every score; else constant memory
  std::string average = "macro";  ///< of several classes: the mean over classes, or none: one value a class
  bool from_logits = false;       ///< whether scores become probabilities first (sigmoid or softmax) where that matters

  static void describe(Schema<AurocOptions>& schema);
};

/// Area under the ROC curve: the probability that a positive sample scores above a negative one, ties counting half.
/// Exact, from all scores, or binned.
///
/// The area is NaN where there are no positives or no negatives (torchmetrics says 0 there), and the macro average
/// leaves such classes out. A NaN score makes it NaN.
class Auroc : public ScoreMetric {
 public:
  using Options = AurocOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit Auroc(const Options& options = {});

  /// Returns float64: a scalar, or [num_classes] for several classes without an average.
  at::Tensor compute() const override;

 private:
  Options options_;
};

}  // namespace levin::metrics
