#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace levin {

/// Host time of the spans of one name.
struct SpanTime {
  std::string name;
  int64_t calls = 0;
  /// Time of the spans, inner spans included; of nested spans of this name only the outermost.
  std::chrono::nanoseconds total{0};
  /// Time of the spans without inner spans.
  std::chrono::nanoseconds self{0};
};

/// Adds up the spans of one thread. Once every name has been seen, it neither allocates nor locks.
class SpanTimes {
 public:
  using Clock = std::chrono::steady_clock;

  SpanTimes();

  /// Begins a span; `name` as for Profiler::begin.
  void begin(const char* name);
  /// Ends the innermost span; without an open one it does nothing.
  void end();
  /// Returns one entry for each name, the longest total first.
  std::vector<SpanTime> by_total() const { return merged({this}); }
  /// Returns the same for several threads together.
  static std::vector<SpanTime> merged(const std::vector<const SpanTimes*>& threads);

 private:
  struct Slot {
    const char* name;
    int64_t calls = 0;
    int64_t open = 0;  ///< spans of this name that have not ended
    Clock::duration total{0};
    Clock::duration self{0};
  };
  struct Open {
    size_t slot;
    Clock::time_point began;
    Clock::duration inside{0};  ///< time of the spans in it
  };

  size_t slot_of(const char* name);

  std::unordered_map<const void*, size_t> slot_by_address_;
  std::vector<Slot> slots_;
  std::vector<Open> open_;
};

}  // namespace levin
