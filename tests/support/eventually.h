#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace levin::testing {

/// Waits for something that comes sooner or later; false after minutes.
inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// Tries what depends on a time-out with ever longer ones, until it succeeds; false when a minute was not enough.
inline bool with_time_enough(const std::function<bool(std::chrono::seconds time)>& attempt) {
  for (const int seconds : {1, 4, 16, 64})
    if (attempt(std::chrono::seconds(seconds))) return true;
  return false;
}

}  // namespace levin::testing
