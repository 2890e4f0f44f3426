#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/metric.h>

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
/// Exact, from all scores (kept in float32), or binned. Several classes: each against all others.
///
/// The area is NaN where there are no positives or no negatives (torchmetrics says 0 there), and the macro average
/// leaves such classes out. A NaN score makes it NaN.
class Auroc : public Metric {
 public:
  using Options = AurocOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit Auroc(const Options& options = {});

  /// Adds a batch. Binary: scores of the positive class and labels 0 or 1, of one shape. Several classes: scores [N,
  /// C], labels [N]. Scores are any numbers; binned, they are probabilities, or logits with from_logits. Throws
  /// levin::Error for shapes that do not fit. Labels out of range, and negative scores where bins want probabilities,
  /// throw here on the CPU; on another device compute() throws, except that a binned label out of range counts as
  /// negative for every class.
  Auroc& update(const at::Tensor& scores, const at::Tensor& labels);

  /// Returns float64: a scalar, or [num_classes] for several classes without an average.
  at::Tensor compute() const override;

 private:
  bool is_binary() const { return options_.num_classes == 2; }
  bool is_binned() const { return options_.thresholds > 0; }
  void check_input(const at::Tensor& scores, const at::Tensor& labels) const;
  void add_to_bins(const at::Tensor& scores, const at::Tensor& labels);

  Options options_;
  at::Tensor thresholds_;  ///< ascending, float32; binned only
};

}  // namespace levin::metrics
