#include <levin/loggers/histogram.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace levin {
namespace {

std::vector<double> make_limits() {
  std::vector<double> positive;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
  positive.push_back(std::numeric_limits<double>::max());

  std::vector<double> limits;
  limits.reserve(2 * positive.size() + 1);
  for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) limits.push_back(-*limit);
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

}  // namespace

Histogram Histogram::of(std::span<const double> values) {
  static const std::vector<double> all_limits = make_limits();

  Histogram result;
  result.min = std::numeric_limits<double>::infinity();
  result.max = -result.min;
  std::vector<double> counts(all_limits.size());
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    result.min = std::min(result.min, value);
    result.max = std::max(result.max, value);
    result.sum += value;
    result.sum_of_squares += value * value;
    ++result.count;
    // The first limit above the value ends its bucket; the greatest double belongs to the last bucket all the same.
    const auto limit = std::upper_bound(all_limits.begin(), all_limits.end() - 1, value);
    ++counts[static_cast<size_t>(limit - all_limits.begin())];
  }
  if (result.count == 0) return {};

  for (size_t i = 0; i < counts.size(); ++i) {
    const bool empty = counts[i] == 0;
    if (empty && !result.counts.empty() && result.counts.back() == 0)
      result.limits.back() = all_limits[i];
    else if (!empty || i + 1 < counts.size()) {
      result.limits.push_back(all_limits[i]);
      result.counts.push_back(counts[i]);
    }
  }
  return result;
}

}  // namespace levin
