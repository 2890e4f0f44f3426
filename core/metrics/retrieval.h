#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/metrics/metric.h>

#include <cstdint>
#include <optional>
#include <string>

/// Metrics of ranked results: the mean over queries. They keep every result.
namespace levin::metrics {

struct RetrievalOptions {
  std::optional<int64_t> top_k = {};        ///< only the best k results of a query count; nothing: all
  std::string empty_target_action = "neg";  ///< a query without relevant results: neg: 0, pos: 1, skip: left out

  static void describe(Schema<RetrievalOptions>& schema);
};

/// Base of them. Of results with the same score the irrelevant come first, so that order, batches and ranks change
/// nothing.
class RetrievalMetric : public Metric {
 public:
  using Options = RetrievalOptions;

  /// Adds results, all of one shape: scores, how relevant each is (integers; 0 is not), and the number of its query
  /// (any integers). Throws levin::Error for shapes and types that do not fit.
  RetrievalMetric& update(const at::Tensor& scores, const at::Tensor& relevance, const at::Tensor& queries);

  /// Returns a scalar, float64; NaN where there are no queries and where a score is NaN.
  at::Tensor compute() const override;

  std::string update_key() const override { return "retrieval"; }

 protected:
  /// Throws levin::ConfigError when an option is out of range. `name` is the metric's name in messages.
  RetrievalMetric(const char* name, const Options& options);

  /// Results in order, of each query the best first.
  struct Ranked {
    at::Tensor scores;     ///< [results], floating-point
    at::Tensor relevance;  ///< [results], int64
    at::Tensor query;      ///< [results], int64, from 0 on
    at::Tensor place;      ///< [results], int64: 1 for the best result of its query
    at::Tensor counts;     ///< [results], bool: among the best k
    int64_t queries;

    /// Sums of results over each query, [queries].
    at::Tensor per_query(const at::Tensor& of_results) const;
  };
  /// Returns a value for each query, [queries], float64; anything where nothing is relevant.
  virtual at::Tensor values(const Ranked& ranked) const = 0;
  const Options& options() const { return options_; }

 private:
  const char* name_;
  Options options_;
};

/// Mean reciprocal rank: 1 / the place of the first relevant result.
class RetrievalMRR : public RetrievalMetric {
 public:
  explicit RetrievalMRR(const Options& options = {}) : RetrievalMetric("RetrievalMRR", options) {}

 protected:
  at::Tensor values(const Ranked& ranked) const override;
};

/// Mean average precision: the mean, over the relevant results among those that count, of the precision up to there.
class RetrievalMAP : public RetrievalMetric {
 public:
  explicit RetrievalMAP(const Options& options = {}) : RetrievalMetric("RetrievalMAP", options) {}

 protected:
  at::Tensor values(const Ranked& ranked) const override;
};

/// Normalized discounted cumulative gain: the relevance of each result over the logarithm of its place, as a part of
/// what the best order has (Järvelin and Kekäläinen, 2002). Results with the same score share their places.
class RetrievalNDCG : public RetrievalMetric {
 public:
  explicit RetrievalNDCG(const Options& options = {}) : RetrievalMetric("RetrievalNDCG", options) {}

 protected:
  at::Tensor values(const Ranked& ranked) const override;
};

}  // namespace levin::metrics
