#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/metric.h>

#include <cstdint>
#include <string>

namespace levin::metrics {

struct CalibrationErrorOptions {
  int64_t num_classes = 2;
  int64_t n_bins = 15;
  std::string norm = "l1";  ///< l1: the mean over samples (ECE), l2: the root of the mean square, max: of the worst bin
  bool from_logits = false;  ///< whether scores become probabilities first (sigmoid or softmax)

  static void describe(Schema<CalibrationErrorOptions>& schema);
};

/// How far confidence is from accuracy, in bins of like confidence (Guo et al., 2017, arXiv:1706.04599). The confidence
/// of a binary task is the probability of the positive class, of several classes that of the best one.
class CalibrationError : public Metric {
 public:
  using Options = CalibrationErrorOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit CalibrationError(const Options& options = {});

  /// Adds a batch. Binary: scores of the positive class and labels 0 or 1, of one shape. Several classes: scores [N,
  /// C, ...], labels [N, ...]. Scores are probabilities, or logits with from_logits. Throws levin::Error for shapes
  /// that do not fit and, on the CPU, for scores and labels out of range; on another device, compute() throws for
  /// scores out of range, and a label out of range is one that was not predicted.
  CalibrationError& update(const at::Tensor& scores, const at::Tensor& labels);

  /// Returns a scalar, float64; NaN before any update and where a score is NaN.
  at::Tensor compute() const override;

  std::string update_key() const override;

 private:
  void check_input(const at::Tensor& scores, const at::Tensor& labels) const;

  Options options_;
  at::Tensor boundaries_;  ///< ascending, [n_bins + 1], of the type of the last confidences
};

}  // namespace levin::metrics
