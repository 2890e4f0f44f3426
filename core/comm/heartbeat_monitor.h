#pragma once

#include <levin/core/comm/collective.h>
#include <levin/core/comm/control_plane_options.h>
#include <levin/core/comm/heartbeat.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/core/comm/rank_status.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace levin {

/// Sends a rank's heartbeats and watches another's. Each rank watches the next one that has not left, so that a store
/// serves many ranks and still no rank dies unnoticed.
///
/// Used by one thread, which passes the present time as `now`.
class HeartbeatMonitor {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HeartbeatMonitor(const ControlPlaneOptions& options);

  /// Returns the time between two heartbeats, and between two looks.
  static Clock::duration interval(const ControlPlaneOptions& options) { return options.heartbeat_timeout / 8; }

  /// Notes what this rank is doing. Called as often as possible, to tell one long activity from several short ones.
  void observe(const RankStatus& rank_status, Clock::time_point now);
  const Heartbeat& own() const { return own_; }

  void beat(Store& store, Clock::time_point now);
  /// Sends the last heartbeat.
  void leave(Store& store);
  /// Sends that of another rank, which is gone and is not to be waited for.
  void leave_for(Store& store, int64_t rank) const;
  /// Checks the watched rank; returns its failure once it is taken for dead.
  std::optional<RankFailure> look(Store& store, Clock::time_point now);
  /// Returns " (last seen in training_step of batch 12)", from a rank's last heartbeat, for the end of a message.
  std::string last_seen(Store& store, int64_t rank) const;
  /// Warns once when this rank waits in one collective for too long, with the place of each rank, unless a lower rank
  /// waits too (which then warns).
  void report_stall(Store& store, Clock::time_point now);
  /// Returns a failure, with the place of each rank where there are several, once this rank has been in one part of a
  /// step of training, validation, test or prediction for `hang_after`, or, on the lowest rank, once all ranks wait in
  /// collectives for so long.
  std::optional<RankFailure> look_for_hang(Store& store) const;

 private:
  std::string key(int64_t rank) const;
  std::optional<Heartbeat> read(Store& store, int64_t rank) const;
  void watch(int64_t rank);
  /// A line for each rank, "\n  rank 3: in backward of batch 12 for 61 s".
  std::string places(Store& store) const;
  bool all_wait(Store& store) const;

  const ControlPlaneOptions& options_;
  Heartbeat own_;
  Clock::time_point since_{};  ///< start of the present activity
  bool stall_reported_ = false;
  Clock::time_point last_observed_{};
  Clock::duration in_place_{};  ///< time in the present activity in which this process ran

  int64_t watched_;            ///< this rank itself once all others have left
  std::string last_text_;      ///< the watched rank's last heartbeat; empty: none yet
  Clock::duration silence_{};  ///< time without a new heartbeat
  Clock::time_point last_look_{};
};

}  // namespace levin
