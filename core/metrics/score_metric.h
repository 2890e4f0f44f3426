#pragma once

#include <levin/core/metrics/metric.h>

#include <cstdint>
#include <string>
#include <vector>

namespace levin::metrics {

/// Base of the metrics of scores at all thresholds. Keeps every score, or with `thresholds` the counts in bins, in
/// constant memory. Scores stay float64 where they are that; probabilities from logits are float64, narrower scores
/// float32. Several classes: each against all others.
class ScoreMetric : public Metric {
 public:
  /// Adds a batch. Binary: scores of the positive class and labels 0 or 1, of one shape. Several classes: scores [N,
  /// C], labels [N]. Scores are any numbers; binned, they are probabilities, or logits with from_logits. Throws
  /// levin::Error for shapes that do not fit. Labels out of range, and negative scores where bins want probabilities,
  /// throw here on the CPU; on another device compute() throws, except that a binned label out of range counts as
  /// negative for every class.
  ScoreMetric& update(const at::Tensor& scores, const at::Tensor& labels);

  std::string update_key() const override;

 protected:
  /// `name` is the metric's name in messages; `num_classes` 2 is a binary task; `thresholds` 0 is exact, else this many
  /// from 0 to 1. They have been checked.
  ScoreMetric(const char* name, int64_t num_classes, int64_t thresholds, bool from_logits);

  bool is_binary() const { return num_classes_ == 2; }
  bool is_binned() const { return thresholds_.defined(); }

  /// What is at or above each threshold, by descending threshold: of all scores that there are, or of the bins.
  struct Counts {
    at::Tensor thresholds;       ///< [n], floating-point
    at::Tensor true_positives;   ///< [n], int64
    at::Tensor false_positives;  ///< [n], int64
    at::Tensor positives;        ///< scalar, int64
    at::Tensor negatives;        ///< scalar, int64
    bool has_nan = false;        ///< a score was NaN: nothing is known
  };
  /// Returns the counts of each class, of a binary task one. Waits for the device. Throws levin::Error for what update
  /// could not see on a device.
  std::vector<Counts> counts() const;

 private:
  void check_input(const at::Tensor& scores, const at::Tensor& labels) const;
  void add_to_bins(const at::Tensor& scores, const at::Tensor& labels);
  [[noreturn]] void throw_not_probabilities(const char* got) const;

  const char* name_;
  int64_t num_classes_;
  bool from_logits_;
  at::Tensor thresholds_;  ///< ascending, float32; undefined when exact
};

namespace detail {

/// Averages the values of classes, float64: "macro" and, by their numbers of positives, "weighted" leave out those that
/// are NaN for want of samples; "none" stacks them.
at::Tensor average_values(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& positives,
                          const std::string& average);

}  // namespace detail

}  // namespace levin::metrics
