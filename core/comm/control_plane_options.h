#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace levin {

struct ControlPlaneOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  std::string prefix = {};  ///< start of every key; new for each set of control planes, since keys stay in the store
  int64_t store_rank = 0;   ///< the rank whose process serves the store; -1: none (a launcher, or shared memory)
  std::chrono::milliseconds poll_interval{100};       ///< between two looks at the store
  std::chrono::milliseconds heartbeat_timeout{8000};  ///< a rank not heard of for so long is taken for dead
  std::chrono::milliseconds start_timeout{60000};     ///< the same for a rank not heard of yet
  std::chrono::milliseconds stall_after{60000};       ///< a rank waiting in one collective for so long is reported
  /// A rank that stays in one part of a step for so long ends the job, and so do all ranks that wait in
  /// collectives for so long; zero: never.
  std::chrono::milliseconds hang_after{0};
  std::chrono::milliseconds grace{5000};  ///< for a rank to end by itself after a failure
  /// Says what a rank that is gone was to the others ("; it was server 1"), for the end of the message; empty: nothing.
  std::function<std::string(int64_t rank)> role_of = {};
  /// Ends the collectives of this rank with an error. Called once, from a thread of its own, when a failure that this
  /// rank did not report is known.
  std::function<void(const std::string& reason)> abort = {};
  /// Ends the process when the rank did not end within `grace` (it is stuck in user code). Called once. Default: prints
  /// `reason` on standard error and calls `_exit(1)`; tests replace it.
  std::function<void(const std::string& reason)> give_up = {};
};

}  // namespace levin
