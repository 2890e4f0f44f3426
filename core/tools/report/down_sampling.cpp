#include <levin/core/tools/report/down_sampling.h>

#include <levin/core/base/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace levin::report {
namespace {

void add_bucket(std::span<const Point> bucket, std::vector<SampledPoint>& result) {
  const Point* least = nullptr;
  const Point* greatest = nullptr;
  const Point* gap = nullptr;
  double sum = 0;
  size_t finite = 0;
  for (const Point& point : bucket) {
    if (!std::isfinite(point.value)) {
      if (gap == nullptr) gap = &point;
      continue;
    }
    if (least == nullptr || point.value < least->value) least = &point;
    if (greatest == nullptr || point.value > greatest->value) greatest = &point;
    sum += point.value;
    ++finite;
  }
  const double mean = finite > 0 ? sum / static_cast<double>(finite) : kUnknown;
  // As they lie in memory they follow each other in time; those that are missing (null) come first.
  std::array<const Point*, 3> kept{least, greatest == least ? nullptr : greatest, gap};
  std::sort(kept.begin(), kept.end());
  for (const Point* point : kept)
    if (point != nullptr) result.push_back({*point, mean});
}

}  // namespace

std::vector<SampledPoint> down_sample(const Series& series, size_t most) {
  LEVIN_CHECK(most >= 8, "too few points to draw a curve");
  std::vector<SampledPoint> result;
  if (series.size() <= most) {
    result.reserve(series.size());
    for (const Point& point : series) result.push_back({point, point.value});
    return result;
  }
  const bool has_gaps =
      std::any_of(series.begin(), series.end(), [](const Point& point) { return !std::isfinite(point.value); });
  const size_t buckets = (most - 2) / (has_gaps ? 3 : 2);
  const std::span<const Point> inner(series.data() + 1, series.size() - 2);
  result.reserve(most);
  result.push_back({series.front(), series.front().value});
  for (size_t i = 0; i < buckets; ++i) {
    const size_t begin = inner.size() * i / buckets;
    add_bucket(inner.subspan(begin, inner.size() * (i + 1) / buckets - begin), result);
  }
  result.push_back({series.back(), series.back().value});
  return result;
}

}  // namespace levin::report
