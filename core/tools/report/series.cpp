#include <levin/core/tools/report/series.h>

#include <cmath>

namespace levin::report {
namespace {

Series merged(const Series& first, const Series& second) {
  Series result;
  result.reserve(std::max(first.size(), second.size()));
  auto a = first.begin();
  auto b = second.begin();
  while (a != first.end() || b != second.end()) {
    if (b == second.end() || (a != first.end() && a->step < b->step)) {
      result.push_back(*a++);
    } else if (a == first.end() || b->step < a->step) {
      result.push_back(*b++);
    } else {
      Point point = *b++;
      if (std::isnan(point.epoch)) point.epoch = a->epoch;
      if (std::isnan(point.wall_time)) point.wall_time = a->wall_time;
      ++a;
      result.push_back(point);
    }
  }
  return result;
}

}  // namespace

void SeriesTable::append(std::string_view name, const Point& point) {
  auto entry = series_.find(name);
  if (entry == series_.end()) entry = series_.emplace(name, Series{}).first;
  Series& series = entry->second;
  while (!series.empty() && series.back().step >= point.step) series.pop_back();
  series.push_back(point);
}

void SeriesTable::merge(const SeriesTable& other) {
  for (const auto& [name, series] : other.series_) {
    Series& mine = series_[name];
    mine = merged(mine, series);
  }
}

const Series* SeriesTable::find(std::string_view name) const {
  const auto entry = series_.find(name);
  return entry == series_.end() ? nullptr : &entry->second;
}

SeriesSummary summarize(const Series& series) {
  SeriesSummary summary{.points = series.size()};
  double sum = 0;
  for (const Point& point : series) {
    if (!std::isfinite(point.value)) {
      ++(std::isnan(point.value) ? summary.not_a_number : summary.infinite);
      if (summary.first_non_finite == nullptr) summary.first_non_finite = &point;
      continue;
    }
    if (summary.min == nullptr || point.value < summary.min->value) summary.min = &point;
    if (summary.max == nullptr || point.value > summary.max->value) summary.max = &point;
    summary.last = &point;
    sum += point.value;
  }
  const size_t finite = summary.points - summary.not_a_number - summary.infinite;
  if (finite > 0) summary.mean = sum / static_cast<double>(finite);
  return summary;
}

double settled_mean(const Series& series) {
  return summarize(Series(series.begin() + static_cast<std::ptrdiff_t>(series.size() / 2), series.end())).mean;
}

}  // namespace levin::report
