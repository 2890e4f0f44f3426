#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace levin {

/// Report of a rank on itself, sent about once a second.
struct Heartbeat {
  int64_t count = 0;                       ///< grows, so that no two are equal
  bool left = false;                       ///< the last one: the rank ended in good order
  int64_t batch = -1;                      ///< the training batch under way; -1: none was begun
  std::string activity;                    ///< the hook or phase under way
  std::string collective;                  ///< the collective that the rank waits in; empty: none
  std::string evaluation;                  ///< the evaluation whose batches are under way ("validation"); empty: none
  int64_t evaluation_loader = 0;           ///< its loader
  int64_t evaluation_batch = 0;            ///< the batch of that loader
  std::chrono::milliseconds unchanged{0};  ///< time since any of the above last changed

  bool waits() const { return !left && !collective.empty(); }
  /// Returns "in training_step of batch 12", "in validation_step of validation batch 3 of loader 1" (named but for the
  /// first one) or "waiting in all_reduce of batch 12".
  std::string place() const;
  /// Returns "in training_step of batch 12 for 61 s", "waits in all_reduce of batch 12 for 60 s (activity backward)" or
  /// "has left".
  std::string sentence() const;

  std::string encode() const;
  static Heartbeat decode(const std::string& text);
};

/// Returns "8 s", or "250 ms" for less than a second.
std::string duration_text(std::chrono::milliseconds duration);

}  // namespace levin
