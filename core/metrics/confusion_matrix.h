#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/metric.h>

#include <cstdint>
#include <string>

namespace levin::metrics {

struct ConfusionMatrixOptions {
  int64_t num_classes = 0;         ///< must be set
  std::string normalize = "none";  ///< none: counts; true, pred, all: rows, columns or the whole sum to 1

  static void describe(Schema<ConfusionMatrixOptions>& schema);
};

/// Counts of samples of class i predicted as class j.
class ConfusionMatrix : public Metric {
 public:
  using Options = ConfusionMatrixOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit ConfusionMatrix(const Options& options);

  /// Adds a batch: logits or probabilities [N, C, ...] or class indices [N, ...], and labels [N, ...]. Throws
  /// levin::Error for shapes that do not fit and, on the CPU, for classes out of range; on another device compute()
  /// throws for those.
  ConfusionMatrix& update(const at::Tensor& predictions, const at::Tensor& labels);

  /// Returns [labels, predictions]. Counts are int64, and zeros before any update. Shares are float64, 0 for a class
  /// that does not occur, and NaN before any update.
  at::Tensor compute() const override;

  std::string update_key() const override;

 private:
  Options options_;
};

}  // namespace levin::metrics
