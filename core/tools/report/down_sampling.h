#pragma once

#include <levin/core/tools/report/series.h>

#include <cstddef>
#include <vector>

namespace levin::report {

/// A point that stands for those around it.
struct SampledPoint {
  Point point;
  double mean = kUnknown;  ///< of the finite values that it stands for
};

/// At most `most` points (at least 8) that draw the same picture as `series`. A series that is short enough stays
/// whole. Of a longer one remain its first and its last point, and of every bucket of successive points in between the
/// least and the greatest finite value and, where there are some, the first that is not finite: extremes and gaps stay
/// where they are, no point is made up.
std::vector<SampledPoint> down_sample(const Series& series, size_t most);

}  // namespace levin::report
