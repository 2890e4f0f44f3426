#pragma once

#include <cstdint>
#include <optional>

namespace levin {

/// Search for the largest batch size that fits: doubling from the first one until memory runs out or a limit is
/// reached, then, with `bisect`, halving the interval in which the limit of memory lies. Where not even the first one
/// fits, smaller ones follow, down to 1.
class BatchSizeSearch {
 public:
  struct Options {
    int64_t first = 2;
    int64_t limit = 8192;  ///< no larger one is tried
    int64_t max_trials = 25;
    bool bisect = false;
    double margin = 0;  ///< part of the found size that `bisect` leaves free where memory was the limit
  };

  explicit BatchSizeSearch(const Options& options) : options_(options) {}

  /// The next size to try, or nothing at the end.
  std::optional<int64_t> next() const;
  void fits(int64_t size);
  void runs_out_of_memory(int64_t size);
  /// Records that there are not enough data for that size.
  void runs_out_of_data(int64_t size);

  /// The size to use; nothing where none fits.
  std::optional<int64_t> result() const;
  int64_t trials() const { return trials_; }
  /// The smallest size that ran out of memory, or 0.
  int64_t smallest_failure() const { return failed_; }

 private:
  Options options_;
  int64_t largest_ = 0;  ///< largest size that fits
  int64_t failed_ = 0;
  int64_t trials_ = 0;
};

}  // namespace levin
