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

/// What a rank tells of itself by heartbeats, and what it learns of others from theirs. Each rank watches one other:
/// the next one that has not left. So a store serves many ranks, and still no rank dies unnoticed.
///
/// Used by one thread, which calls every method with the time it takes for now.
class HeartbeatMonitor {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HeartbeatMonitor(const ControlPlaneOptions& options);

  /// Between two heartbeats, and between two looks.
  static Clock::duration interval(const ControlPlaneOptions& options) { return options.heartbeat_timeout / 8; }

  /// Notes where this rank is. Called as often as possible: what lasts is told from what returns.
  void observe(const RankStatus& rank_status, Clock::time_point now);
  const Heartbeat& own() const { return own_; }

  void beat(Store& store, Clock::time_point now);
  /// The last heartbeat.
  void leave(Store& store);
  /// Looks after the watched rank; returns its failure once it is taken for dead.
  std::optional<RankFailure> look(Store& store, Clock::time_point now);
  /// For the end of a message on another rank: " (last seen in training_step of batch 12)", by its last heartbeat.
  std::string last_seen(Store& store, int64_t rank) const;
  /// Where this rank waits in one collective for too long: warns once of that, with the place of each rank, unless a
  /// lower rank waits too (which then warns).
  void report_stall(Store& store, Clock::time_point now);

 private:
  std::string key(int64_t rank) const;
  std::optional<Heartbeat> read(Store& store, int64_t rank) const;
  void watch(int64_t rank);

  const ControlPlaneOptions& options_;
  Heartbeat own_;
  Clock::time_point since_{};  ///< when this rank came to where it is
  bool stall_reported_ = false;

  int64_t watched_;            ///< this rank itself once all others have left
  std::string last_text_;      ///< the watched rank's last heartbeat; empty: none yet
  Clock::duration silence_{};  ///< since that
  Clock::time_point last_look_{};
};

}  // namespace levin
