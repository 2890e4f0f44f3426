#include <levin/callbacks/progress_line.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace levin {
namespace {

constexpr size_t kLongestBar = 40;
constexpr size_t kShortestBar = 4;

bool is_continuation_byte(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::string cut(std::string text, size_t columns) {
  size_t characters = 0;
  for (size_t i = 0; i < text.size(); ++i)
    if (!is_continuation_byte(text[i]) && ++characters > columns) return text.substr(0, i);
  return text;
}

std::string bar(double fraction, size_t width, bool blocks) {
  // Eighths of a character, in UTF-8.
  constexpr const char* kPartial[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double filled = fraction * static_cast<double>(width);
  const auto whole = static_cast<size_t>(filled);
  std::string text;
  for (size_t i = 0; i < whole; ++i) text += blocks ? "█" : "#";
  if (blocks) text += kPartial[static_cast<size_t>((filled - static_cast<double>(whole)) * 8)];
  return text + std::string(width - count_characters(text), ' ');
}

/// "[00:03<00:04, 131.2it/s, train_loss=0.312]" with the first `metric_count` metrics.
std::string tail(const Progress& progress, size_t metric_count) {
  const auto done_here = static_cast<double>(progress.done - progress.resumed);
  const bool measured = done_here > 0 && progress.seconds > 0;
  const double rate = measured ? done_here / progress.seconds : 0.0;
  std::string text = "[" + clock_time(progress.seconds);
  if (progress.total >= 0) {
    const auto left = static_cast<double>(std::max<int64_t>(progress.total - progress.done, 0));
    text += "<" + (measured ? clock_time(left / rate) : "?");
  }
  if (!measured)
    text += ", ?it/s";
  else
    text += rate >= 1 ? fmt::format(", {:.1f}it/s", rate) : fmt::format(", {:.2f}s/it", 1 / rate);
  auto metric = progress.metrics.begin();
  for (size_t i = 0; i < metric_count; ++i, ++metric)
    text += fmt::format(", {}={}", metric->first, short_number(metric->second));
  return text + "]";
}

double fraction_of(const Progress& progress) {
  if (progress.total == 0) return 1;
  return std::clamp(static_cast<double>(progress.done) / static_cast<double>(progress.total), 0.0, 1.0);
}

std::string head(const Progress& progress) {
  std::string text = progress.description + ":";
  // Cut off, not rounded: 100 % is everything.
  if (progress.total >= 0) text += fmt::format(" {:3d}%", static_cast<int>(fraction_of(progress) * 100));
  return text;
}

std::string counts(const Progress& progress) {
  return fmt::format("{}/{}", progress.done, progress.total < 0 ? "?" : std::to_string(progress.total));
}

}  // namespace

std::string render_progress(const Progress& progress, size_t columns, bool blocks) {
  const std::string left = head(progress);
  const std::string middle = counts(progress);
  const bool has_bar = progress.total >= 0;
  // Beside the parts: a blank before the counts and one after; with a bar "|" twice.
  const size_t fixed = count_characters(left) + count_characters(middle) + 2 + (has_bar ? 2 : 0);
  const size_t smallest_bar = has_bar ? kShortestBar : 0;

  size_t metric_count = progress.metrics.size();
  std::string right = tail(progress, metric_count);
  while (metric_count > 0 && fixed + smallest_bar + count_characters(right) > columns)
    right = tail(progress, --metric_count);

  const size_t needed = fixed + count_characters(right);
  if (!has_bar || needed + kShortestBar > columns) return cut(left + " " + middle + " " + right, columns);
  const size_t width = std::min(columns - needed, kLongestBar);
  return fmt::format("{}|{}| {} {}", left, bar(fraction_of(progress), width, blocks), middle, right);
}

std::string render_progress(const Progress& progress) {
  return head(progress) + " " + counts(progress) + " " + tail(progress, progress.metrics.size());
}

std::string clock_time(double seconds) {
  constexpr double kLongest = 1e9;  // some thirty years
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, kLongest));
  const int64_t hours = whole / 3600;
  const std::string rest = fmt::format("{:02}:{:02}", whole / 60 % 60, whole % 60);
  return hours == 0 ? rest : fmt::format("{}:{}", hours, rest);
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (value == 0 || (size >= 1e-3 && size < 100)) return fmt::format("{:.3f}", value);
  if (size >= 100 && size < 1e6) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2e}", value);
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation_byte(c); }));
}

}  // namespace levin
