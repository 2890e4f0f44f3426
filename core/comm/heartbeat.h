#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace levin {

/// What a rank says of itself about once a second.
struct Heartbeat {
  int64_t count = 0;                       ///< grows, so that no two are equal
  bool left = false;                       ///< the last one: the rank ended in good order
  int64_t batch = -1;                      ///< the training batch under way; -1: none was begun
  std::string activity;                    ///< the hook or phase under way
  std::string collective;                  ///< the collective that the rank waits in; empty: none
  std::chrono::milliseconds unchanged{0};  ///< for how long all this has been so

  bool waits() const { return !left && !collective.empty(); }
  /// "in training_step of batch 12", "waiting in all_reduce of batch 12".
  std::string place() const;
  /// "in training_step of batch 12 for 61 s", "waits in all_reduce of batch 12 for 60 s (activity backward)", "has
  /// left".
  std::string sentence() const;

  std::string encode() const;
  static Heartbeat decode(const std::string& text);
};

/// "8 s", or "250 ms" for less than a second.
std::string duration_text(std::chrono::milliseconds duration);

}  // namespace levin
