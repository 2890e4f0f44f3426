#include <levin/core/tools/report/time_to_target.h>

#include <levin/core/base/error.h>
#include <levin/core/tools/report/metric_placement.h>

#include <charconv>
#include <cmath>
#include <system_error>

namespace levin::report {
namespace {

Direction direction_of(const RunFolder& run, const Target& target, const Series& series) {
  if (target.metric == run.monitor) return run.monitor_is_maximized ? Direction::kUp : Direction::kDown;
  if (const Direction named = better_direction(target.metric); named != Direction::kUnknown) return named;
  for (const Point& point : series)
    if (std::isfinite(point.value)) return point.value > target.value ? Direction::kDown : Direction::kUp;
  return Direction::kUnknown;
}

}  // namespace

Target parse_target(const std::string& text) {
  const size_t sign = text.rfind('=');
  Target target;
  if (sign != std::string::npos && sign > 0) {
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data() + sign + 1, end, target.value);
    target.metric = text.substr(0, sign);
    if (result.ec == std::errc() && result.ptr == end && std::isfinite(target.value)) return target;
  }
  throw Error("command line",
              "--time-to must be a metric and a number; got '" + text + "'; valid: --time-to val_loss=0.5");
}

std::optional<Reached> time_to(const RunFolder& run, const Target& target) {
  const Series* series = run.metrics.find(target.metric);
  if (series == nullptr) return std::nullopt;
  const Direction direction = direction_of(run, target, *series);
  for (const Point& point : *series) {
    const bool is_there = direction == Direction::kUp ? point.value >= target.value : point.value <= target.value;
    if (is_there) return Reached{.step = point.step, .seconds = point.wall_time - run.first_time};
  }
  return std::nullopt;
}

}  // namespace levin::report
