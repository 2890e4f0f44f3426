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

}  // namespace levin::testing
