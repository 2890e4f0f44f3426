#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace levin::report {

/// What is not known.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// A metric's value at a step.
struct Point {
  int64_t step = 0;
  double value = 0;
  double epoch = kUnknown;
  double wall_time = kUnknown;  ///< seconds since 1970
};

/// A metric's points, by rising step: one a step.
using Series = std::vector<Point>;

/// The series of a run, by the metric's name.
class SeriesTable {
 public:
  /// Appends a point. When its step is not beyond the series' last one, training went back to a checkpoint, and what
  /// had been logged from that step on is replaced.
  void append(std::string_view name, const Point& point);

  /// Adds the points of `other`. Where both have a step, the values of `other` count, and what it does not know of
  /// epoch and time stays.
  void merge(const SeriesTable& other);

  /// nullptr when there is none of that name.
  const Series* find(std::string_view name) const;
  const std::map<std::string, Series, std::less<>>& all() const { return series_; }
  bool empty() const { return series_.empty(); }

 private:
  std::map<std::string, Series, std::less<>> series_;
};

/// What a card or a table says of a series.
struct SeriesSummary {
  size_t points = 0;
  size_t not_a_number = 0;
  size_t infinite = 0;
  /// The first point that is NaN or infinite; nullptr when there is none.
  const Point* first_non_finite = nullptr;
  // Of the finite points; nullptr when there is none.
  const Point* min = nullptr;
  const Point* max = nullptr;
  const Point* last = nullptr;
  double mean = kUnknown;
};

/// Points into `series`, which must live on.
SeriesSummary summarize(const Series& series);

/// The mean of the finite values in the second half of the points, where what happens once at a start no longer counts;
/// unknown when there is none.
double settled_mean(const Series& series);

}  // namespace levin::report
