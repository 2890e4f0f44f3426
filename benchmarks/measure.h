#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

/// What the benchmarks measure with.
namespace levin::benchmarks {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point started) {
  return std::chrono::duration<double>(Clock::now() - started).count();
}

/// Of an even number of values the upper one in the middle. There must be one.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The seconds that `program --variant INDEX COUNT` prints: one variant of a benchmark, in a process of its own. Throws
/// std::runtime_error where it prints none.
inline double run_in_process(const std::string& program, size_t variant, int64_t count) {
  const std::string command =
      program + " --variant " + std::to_string(variant) + " " + std::to_string(count) + " 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  double seconds = 0;
  if (pipe == nullptr || std::fscanf(pipe, "%lf", &seconds) != 1)
    throw std::runtime_error("a variant failed: " + command);
  pclose(pipe);
  return seconds;
}

}  // namespace levin::benchmarks
