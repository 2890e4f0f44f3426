#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// The numbers of a learning rate range test (Smith, "Cyclical learning rates for training neural networks", 2017): the
/// rates to try, the losses they give, smoothed, and the rate at which the loss falls most steeply.
class LearningRateSweep {
 public:
  struct Options {
    double min_lr = 1e-8;
    double max_lr = 1;
    int64_t steps = 100;
    bool exponential = true;                         ///< else rates rise evenly
    std::optional<double> early_stop_threshold = 4;  ///< ends the sweep at so many times the smallest loss
  };
  struct Point {
    double rate = 0;
    double loss = 0;      ///< as measured
    double smoothed = 0;  ///< exponential moving average (0.98), without its bias to zero
  };

  explicit LearningRateSweep(const Options& options) : options_(options) {}
  /// Takes the points of a sweep that was made before, to look at.
  LearningRateSweep(const Options& options, std::vector<Point> points)
      : options_(options), points_(std::move(points)) {}

  /// The rate of a 0-based step, from min_lr to max_lr.
  double rate(int64_t step) const;
  /// Adds the loss of a step. Returns false when the sweep is over: the loss has diverged, or is no number and left
  /// out.
  bool add(double rate, double loss);
  const Options& options() const { return options_; }
  const std::vector<Point>& points() const { return points_; }

  /// The point at which the smoothed loss falls most steeply from step to step. The first 10 points and the last one
  /// are left out, where there is too little to smooth and where it may have begun to diverge. Nothing where fewer than
  /// two are left or the loss falls nowhere.
  std::optional<size_t> steepest() const;
  /// The rate at that point, rounded to three digits: what is printed is what is used.
  std::optional<double> suggestion() const;
  /// Says why there is no suggestion.
  std::string why_nothing() const;

 private:
  size_t usable_points() const;

  const Options options_;
  std::vector<Point> points_;
  double average_ = 0;
  double smallest_ = 0;
};

}  // namespace levin
