#pragma once

#include <span>
#include <vector>

namespace levin {

/// Contents of TensorBoard's HistogramProto.
struct Histogram {
  double min = 0;
  double max = 0;
  double count = 0;
  double sum = 0;
  double sum_of_squares = 0;
  /// Upper ends of the buckets, rising; a bucket begins where the one before it ends.
  std::vector<double> limits;
  std::vector<double> counts;  ///< as many as limits

  /// Counts values in TensorFlow's buckets (tensorflow/core/lib/histogram): ends at 0 and at ±1e-12·1.1^k up to 1e20.
  /// Empty buckets next to each other become one. NaN and infinite values are left out; `count` is 0 when nothing
  /// remains.
  static Histogram of(std::span<const double> values);
};

}  // namespace levin
