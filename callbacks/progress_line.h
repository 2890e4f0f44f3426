#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace levin {

/// State of a progress bar at one moment.
struct Progress {
  std::string description;
  int64_t done = 0;
  int64_t total = -1;   ///< -1: not known
  int64_t resumed = 0;  ///< of those done, the ones before `seconds` began
  double seconds = 0;
  std::map<std::string, double> metrics;
};

/// Renders one line for a terminal of `columns` characters: description, percentage, bar, counts, time elapsed and
/// left, rate, metrics. Where room is short, first the bar shrinks, then metrics are left out from the end, then the
/// line is cut. `blocks`: draw with block characters (UTF-8) instead of '#'.
std::string render_progress(const Progress& progress, size_t columns, bool blocks);

/// Renders the same in full length, without a bar: a line of a log.
std::string render_progress(const Progress& progress);

/// Formats seconds as "03:07" or "1:02:03".
std::string clock_time(double seconds);

/// Formats a metric's value in few characters: "0.312", "1.20e-05".
std::string short_number(double value);

/// Counts the characters of a UTF-8 text.
size_t count_characters(std::string_view text);

}  // namespace levin
