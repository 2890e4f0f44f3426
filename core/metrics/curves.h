#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/score_metric.h>

#include <cstdint>
#include <string>
#include <vector>

/// Precision, recall and false positives over all thresholds of a score. Several classes: each against all others. What
/// is undefined for want of positives or negatives, and everything where a score is NaN, is NaN.
namespace levin::metrics {

struct AveragePrecisionOptions {
  int64_t num_classes = 2;
  int64_t thresholds = 0;         ///< 0: keeps every score; else constant memory
  std::string average = "macro";  ///< of several classes: the mean, one weighted by their samples, or none
  bool from_logits = false;       ///< whether scores become probabilities first (sigmoid or softmax) where that matters

  static void describe(Schema<AveragePrecisionOptions>& schema);
};

/// Area under the precision-recall curve, as a mean of the precisions weighted by the rise of the recall: no line is
/// drawn between points.
class AveragePrecision : public ScoreMetric {
 public:
  using Options = AveragePrecisionOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit AveragePrecision(const Options& options = {});

  /// Returns float64: a scalar, or [num_classes] for several classes without an average. Averages leave out classes
  /// without positives.
  at::Tensor compute() const override;

 private:
  Options options_;
};

struct CurveOptions {
  int64_t num_classes = 2;
  int64_t thresholds = 0;    ///< 0: keeps every score; else constant memory
  bool from_logits = false;  ///< whether scores become probabilities first (sigmoid or softmax) where that matters

  static void describe(Schema<CurveOptions>& schema);
};

/// Points of a curve, float64; NaN where undefined.
struct Curve {
  at::Tensor x;           ///< [points]
  at::Tensor y;           ///< [points]
  at::Tensor thresholds;  ///< [points]: the least score that counts as positive there
};

/// Base of the curves.
class CurveMetric : public ScoreMetric {
 public:
  using Options = CurveOptions;

  /// Returns the curve of each class, of a binary task one.
  virtual std::vector<Curve> curves() const = 0;
  /// Returns x, y and thresholds of each class, [classes, 3, points], of a binary task [3, points]; float64. Classes
  /// with fewer points than others have NaN after their last.
  at::Tensor compute() const override;

 protected:
  CurveMetric(const char* name, const Options& options);
};

/// Recall (x) and precision (y), by ascending threshold. The last point is recall 0 and precision 1, whose threshold is
/// infinity. A precision is NaN where no score reaches the threshold.
class PrecisionRecallCurve : public CurveMetric {
 public:
  explicit PrecisionRecallCurve(const Options& options = {}) : CurveMetric("PrecisionRecallCurve", options) {}
  std::vector<Curve> curves() const override;
};

/// The receiver operating characteristic: shares of the negatives (x) and of the positives (y) that count as positive,
/// by descending threshold. Exact, the first point is 0 and 0, whose threshold is infinity.
class Roc : public CurveMetric {
 public:
  explicit Roc(const Options& options = {}) : CurveMetric("Roc", options) {}
  std::vector<Curve> curves() const override;
};

struct PrecisionAtFixedRecallOptions {
  double min_recall = 0.5;
  int64_t num_classes = 2;
  int64_t thresholds = 0;    ///< 0: keeps every score; else constant memory
  bool from_logits = false;  ///< whether scores become probabilities first (sigmoid or softmax) where that matters

  static void describe(Schema<PrecisionAtFixedRecallOptions>& schema);
};

/// The highest precision of the thresholds whose recall is at least `min_recall`.
class PrecisionAtFixedRecall : public ScoreMetric {
 public:
  using Options = PrecisionAtFixedRecallOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit PrecisionAtFixedRecall(const Options& options = {});

  /// Returns float64: a scalar, or [num_classes] for several classes; 0 where no threshold has that recall, and
  /// without positives.
  at::Tensor compute() const override;
  /// Returns the thresholds of these precisions, of equal ones that of the highest recall; NaN where they are 0.
  at::Tensor threshold() const;

 private:
  Options options_;
};

struct RecallAtFixedPrecisionOptions {
  double min_precision = 0.5;
  int64_t num_classes = 2;
  int64_t thresholds = 0;    ///< 0: keeps every score; else constant memory
  bool from_logits = false;  ///< whether scores become probabilities first (sigmoid or softmax) where that matters

  static void describe(Schema<RecallAtFixedPrecisionOptions>& schema);
};

/// The highest recall of the thresholds whose precision is at least `min_precision`.
class RecallAtFixedPrecision : public ScoreMetric {
 public:
  using Options = RecallAtFixedPrecisionOptions;

  /// Throws levin::ConfigError when an option is out of range.
  explicit RecallAtFixedPrecision(const Options& options = {});

  /// Returns float64: a scalar, or [num_classes] for several classes; 0 where no threshold has that
  /// precision, and without positives.
  at::Tensor compute() const override;
  /// Returns the thresholds of these recalls, of equal ones that of the highest precision; NaN where they are 0.
  at::Tensor threshold() const;

 private:
  Options options_;
};

}  // namespace levin::metrics
