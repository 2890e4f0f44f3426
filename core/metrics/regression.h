#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/metric.h>

#include <cstdint>
#include <string>

/// Metrics of numbers against numbers. All elements of a batch count alike, whatever its shape. They are read as
/// float64 and summed in it, so that batches and ranks add up to the value of the whole.
namespace levin::metrics {

/// Base of those that follow from sums over elements.
class SumMetric : public Metric {
 public:
  /// Adds a batch of any shape. Throws levin::Error when the two shapes differ: nothing is broadcast.
  SumMetric& update(const at::Tensor& predictions, const at::Tensor& targets);

 protected:
  /// `name` is the metric's name in messages, `sums` the number of sums.
  SumMetric(const char* name, int64_t sums);
  /// Returns a batch's sums, [sums], from flat tensors in float64.
  virtual at::Tensor sums_of(const at::Tensor& predictions, const at::Tensor& targets) const = 0;
  /// The sums so far, [sums], float64.
  const at::Tensor& sums() const { return state(0); }

 private:
  const char* name_;
};

/// Mean of |prediction - target|. All compute() here return a scalar, float64, NaN before any update.
class MeanAbsoluteError : public SumMetric {
 public:
  MeanAbsoluteError() : SumMetric("MeanAbsoluteError", 2) {}
  at::Tensor compute() const override;

 protected:
  at::Tensor sums_of(const at::Tensor& predictions, const at::Tensor& targets) const override;
};

/// Mean of |prediction - target| / |target|, a share, in which a target counts as at least 1.17e-6, as torchmetrics has
/// it.
class MeanAbsolutePercentageError : public SumMetric {
 public:
  MeanAbsolutePercentageError() : SumMetric("MeanAbsolutePercentageError", 2) {}
  at::Tensor compute() const override;

 protected:
  at::Tensor sums_of(const at::Tensor& predictions, const at::Tensor& targets) const override;
};

/// Base of those that follow from the first and second moments of predictions, targets and errors. No digits are lost
/// where values are large beside their differences. They are NaN where a value is infinite.
class MomentMetric : public Metric {
 public:
  /// Adds a batch of any shape. Throws levin::Error when the two shapes differ: nothing is broadcast.
  MomentMetric& update(const at::Tensor& predictions, const at::Tensor& targets);

  std::string update_key() const override { return "moments"; }

 protected:
  explicit MomentMetric(const char* name);

  /// Each in the units of its variables; see moments.h.
  struct Moments {
    at::Tensor count;
    at::Tensor prediction_variance;  ///< means of squares and products of deviations from the means
    at::Tensor target_variance;
    at::Tensor covariance;
    at::Tensor mean_error;      ///< mean of prediction - target, not in units
    at::Tensor error_variance;  ///< variance of prediction - target
    at::Tensor target_unit;     ///< 0 where all targets are the same
    at::Tensor error_unit;
  };
  Moments moments() const;
  /// Earlier versions kept sums of values, squares and products.
  State upgraded(const State& saved) const override;

 private:
  const char* name_;
};

/// 1 - squared error / variance of the targets: the share of the targets' variance that is explained. NaN for less than
/// two elements; minus infinity or NaN where all targets are the same.
class R2Score : public MomentMetric {
 public:
  R2Score() : MomentMetric("R2Score") {}
  at::Tensor compute() const override;
};

/// 1 - variance of the error / variance of the targets, which forgives a constant error.
class ExplainedVariance : public MomentMetric {
 public:
  ExplainedVariance() : MomentMetric("ExplainedVariance") {}
  at::Tensor compute() const override;
};

/// Pearson's correlation, from -1 to 1. NaN where predictions or targets are all the same.
class PearsonCorrelation : public MomentMetric {
 public:
  PearsonCorrelation() : MomentMetric("PearsonCorrelation") {}
  at::Tensor compute() const override;
};

/// Spearman's correlation of ranks, ties having their mean rank. Keeps every element: in float32, or in float64 those
/// of float64 and of integers.
class SpearmanCorrelation : public Metric {
 public:
  SpearmanCorrelation();

  /// Adds a batch of any shape. Throws levin::Error when the two shapes differ.
  SpearmanCorrelation& update(const at::Tensor& predictions, const at::Tensor& targets);
  at::Tensor compute() const override;
};

/// Mean over rows [N, D] of the cosine of the angle between prediction and target.
class CosineSimilarity : public Metric {
 public:
  CosineSimilarity();

  /// Adds a batch [N, D]. Throws levin::Error for other shapes.
  CosineSimilarity& update(const at::Tensor& predictions, const at::Tensor& targets);
  at::Tensor compute() const override;
};

}  // namespace levin::metrics
