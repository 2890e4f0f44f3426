#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch::autograd::profiler {
struct KinetoEvent;
}

namespace levin {

/// All calls of one operator (or of one named span) in a trace. Times in nanoseconds, of the host and of the device.
struct OperatorTime {
  std::string name;
  int64_t calls = 0;
  int64_t self = 0;    ///< without the operators that it calls
  int64_t total = 0;   ///< with them
  int64_t device = 0;  ///< of the kernels that it launches, without the operators that it calls
  int64_t bytes = 0;   ///< allocated less freed, without the operators that it calls
  int64_t flops = 0;   ///< estimated by LibTorch; 0 where it has no formula
};

/// Adds up a trace as PyTorch's key_averages() does; the longest self time first.
std::vector<OperatorTime> operator_times(const std::vector<torch::autograd::profiler::KinetoEvent>& events);

/// Formats the first `rows` rows as a table, leaving out columns in which no operator has anything.
std::string operator_table(const std::vector<OperatorTime>& times, int64_t rows);

}  // namespace levin
