#pragma once

#include <cstdint>
#include <vector>

namespace levin::data {

/// Numbers with the sums of all halves, so that a place is drawn in proportion to its number in logarithmic time. Sums
/// are a pure function of the numbers, whatever the order in which these were set.
class SumTree {
 public:
  explicit SumTree(int64_t size);

  /// `value`: finite, at least 0.
  void set(int64_t index, double value);
  double get(int64_t index) const { return sums_[static_cast<size_t>(leaves_ + index)]; }
  double total() const { return sums_[1]; }
  /// Returns the place with which the sum of all up to it exceeds `target`, 0 <= target < total(). Never one whose
  /// number is 0, whatever was rounded. Requires: total() > 0.
  int64_t find(double target) const;

 private:
  int64_t leaves_ = 1;        ///< a power of 2
  std::vector<double> sums_;  ///< the root is 1, the children of n are 2n and 2n + 1
};

}  // namespace levin::data
