#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/class_counts.h>
#include <levin/core/metrics/metric.h>

#include <cstdint>
#include <string>

namespace levin::metrics {

struct ClassScoreOptions {
  int64_t num_classes = 0;        ///< must be set
  std::string average = "micro";  ///< micro: over samples; macro, weighted: mean over classes; none: one value a class

  static void describe(Schema<ClassScoreOptions>& schema);
};

/// Base of precision, recall, F1 and their like: a score for each class from its counts of samples, averaged over
/// classes. The macro average leaves out classes that occur neither in labels nor in predictions, as torchmetrics does;
/// elsewhere a score that would divide by zero is 0. Of a binary task, the score of the positive class is element 1
/// without an average.
class ClassScoreMetric : public Metric {
 public:
  using Options = ClassScoreOptions;

  /// Adds a batch: logits or probabilities [N, C, ...] or class indices [N, ...], and labels [N, ...]. Throws
  /// levin::Error for shapes that do not fit and, on the CPU, for classes out of range; on another device compute()
  /// throws for those.
  ClassScoreMetric& update(const at::Tensor& predictions, const at::Tensor& labels);

  /// Returns float64: a scalar, or [num_classes] without an average.
  at::Tensor compute() const override;

  std::string update_key() const override { return detail::class_counts_key(options_.num_classes); }

 protected:
  /// `name` is the metric's name in messages. Throws levin::ConfigError when an option is out of range.
  ClassScoreMetric(const char* name, const Options& options, detail::ClassScore score);

 private:
  const char* name_;
  Options options_;
  detail::ClassScore score_;
};

/// Share of the samples predicted as a class that are labelled so.
class Precision : public ClassScoreMetric {
 public:
  explicit Precision(const Options& options) : ClassScoreMetric("Precision", options, &detail::precision_score) {}
};

/// Share of the samples labelled as a class that are predicted so.
class Recall : public ClassScoreMetric {
 public:
  explicit Recall(const Options& options) : ClassScoreMetric("Recall", options, &detail::recall_score) {}
};

/// Harmonic mean of precision and recall of a class.
class F1Score : public ClassScoreMetric {
 public:
  explicit F1Score(const Options& options) : ClassScoreMetric("F1Score", options, &detail::f1_score) {}
};

/// Share of the samples not labelled as a class that are not predicted so.
class Specificity : public ClassScoreMetric {
 public:
  explicit Specificity(const Options& options) : ClassScoreMetric("Specificity", options, &detail::specificity_score) {}
};

/// Samples both labelled and predicted as a class over those that are either: intersection over union.
class JaccardIndex : public ClassScoreMetric {
 public:
  explicit JaccardIndex(const Options& options) : ClassScoreMetric("JaccardIndex", options, &detail::jaccard_score) {}
};

/// Share of the samples labelled as a class that are predicted otherwise; 1 for a class that is predicted and never
/// labelled, as torchmetrics has it.
class HammingDistance : public ClassScoreMetric {
 public:
  explicit HammingDistance(const Options& options)
      : ClassScoreMetric("HammingDistance", options, &detail::hamming_score) {}
};

struct FBetaScoreOptions {
  int64_t num_classes = 0;        ///< must be set
  double beta = 1;                ///< how many times recall counts as much as precision
  std::string average = "micro";  ///< as ClassScoreOptions has it

  static void describe(Schema<FBetaScoreOptions>& schema);
};

/// Weighted harmonic mean of precision and recall of a class.
class FBetaScore : public ClassScoreMetric {
 public:
  using Options = FBetaScoreOptions;
  explicit FBetaScore(const Options& options);
};

}  // namespace levin::metrics
