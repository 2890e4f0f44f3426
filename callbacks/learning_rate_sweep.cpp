#include <levin/callbacks/learning_rate_sweep.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace levin {
namespace {

constexpr double kSmoothing = 0.98;
constexpr size_t kSkippedAtBegin = 10;
constexpr size_t kSkippedAtEnd = 1;
/// A fall by a smaller part of the loss is an error of rounding.
constexpr double kSmallestFall = 1e-6;

}  // namespace

double LearningRateSweep::rate(int64_t step) const {
  if (options_.steps < 2) return options_.min_lr;
  const double share = static_cast<double>(step) / static_cast<double>(options_.steps - 1);
  if (!options_.exponential) return options_.min_lr + share * (options_.max_lr - options_.min_lr);
  return options_.min_lr * std::pow(options_.max_lr / options_.min_lr, share);
}

bool LearningRateSweep::add(double rate, double loss) {
  if (!std::isfinite(loss)) return false;
  average_ = kSmoothing * average_ + (1 - kSmoothing) * loss;
  const double smoothed = average_ / (1 - std::pow(kSmoothing, static_cast<double>(points_.size() + 1)));
  points_.push_back({.rate = rate, .loss = loss, .smoothed = smoothed});
  smallest_ = points_.size() == 1 ? smoothed : std::min(smallest_, smoothed);
  if (!options_.early_stop_threshold || points_.size() < 2) return true;
  // A loss may be negative.
  return smoothed - smallest_ <= (*options_.early_stop_threshold - 1) * std::abs(smallest_);
}

size_t LearningRateSweep::usable_points() const {
  return points_.size() - std::min(points_.size(), kSkippedAtBegin + kSkippedAtEnd);
}

std::optional<size_t> LearningRateSweep::steepest() const {
  const size_t end = kSkippedAtBegin + usable_points();
  if (usable_points() < 2) return std::nullopt;
  // As numpy.gradient: central differences, one-sided ones at both ends.
  const auto slope = [&](size_t i) {
    const size_t before = i == kSkippedAtBegin ? i : i - 1;
    const size_t after = i + 1 == end ? i : i + 1;
    return (points_[after].smoothed - points_[before].smoothed) / static_cast<double>(after - before);
  };
  size_t best = kSkippedAtBegin;
  for (size_t i = kSkippedAtBegin + 1; i < end; ++i)
    if (slope(i) < slope(best)) best = i;
  if (slope(best) > -kSmallestFall * std::abs(points_[best].smoothed)) return std::nullopt;
  return best;
}

std::optional<double> LearningRateSweep::suggestion() const {
  const auto point = steepest();
  if (!point) return std::nullopt;
  return std::stod(fmt::format("{:.3g}", points_[*point].rate));
}

std::string LearningRateSweep::why_nothing() const {
  if (usable_points() < 2)
    return fmt::format(
        "there are only {} points, of which the first {} and the last are left out; hint: more "
        "num_training_steps, or a smaller min_lr and max_lr where the loss diverged early",
        points_.size(), kSkippedAtBegin);
  return fmt::format(
      "the loss fell nowhere between {:.3g} and {:.3g}; hint: another min_lr or max_lr, or does the "
      "model learn at all?",
      points_.front().rate, points_.back().rate);
}

}  // namespace levin
