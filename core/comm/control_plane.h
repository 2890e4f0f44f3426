#pragma once

#include <levin/core/comm/collective.h>
#include <levin/core/comm/control_plane_options.h>
#include <levin/core/comm/rank_failure.h>
#include <levin/core/comm/rank_status.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// Exchange between ranks beside the collectives: stop requests, failures, heartbeats. A helper thread with a store
/// connection of its own carries them, so that a training step pays two atomic operations and no communication. For n
/// ranks the store answers about 2n questions each `poll_interval` and 3n more each eighth of `heartbeat_timeout`. Of
/// more than 64 ranks each looks less often, so that the former stay as many, until both times are the same.
///
/// A rank is taken for dead when its heartbeats stop for `heartbeat_timeout`, the rank that serves the store when the
/// store breaks off or does not answer for so long. Time in which this process itself did not run does not count.
///
/// After a failure every rank is expected to destroy its control plane within `grace`: that is what "ended" means here.
class ControlPlane {
 public:
  /// Starts the helper. `store` is a connection that nobody else uses; `rank_status` outlives the control plane.
  ControlPlane(std::unique_ptr<Store> store, ControlPlaneOptions options, const RankStatus& rank_status);
  /// Calls leave() and ends the helper.
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  /// Announces that this rank is about to begin training batch `batch` (counted over all epochs, growing). Returns true
  /// when training stops before it. All ranks stop before the same batch: after a request every helper publishes the
  /// batch that its rank may not begin yet, and the greatest of these is the one. Blocks only until the ranks agree
  /// (about one `poll_interval`, once). Throws as `throw_if_failed` does.
  bool begin_batch(int64_t batch);
  /// Tells that this rank begins no batch from `batch` on. Returns whether no rank does, once the ranks agree; others
  /// stop before it with this reason. Throws as `throw_if_failed` does.
  bool end_batches(int64_t batch, const std::string& reason);
  /// Asks all ranks to stop. May be called on one rank or on several, from any thread.
  void request_stop(const std::string& reason);
  /// Returns the reason of the first request that reached this rank; empty without one.
  std::string stop_reason() const;
  /// Forgets stop requests, for another fit, whose batches may be counted from 0 again. Every rank calls it at the same
  /// place, with no request under way elsewhere (a barrier on both sides).
  void forget_stop();

  /// End of an epoch that a rank decided on by itself.
  struct EarlyEnd {
    int64_t rank = 0;
    int64_t epoch = 0;
    int64_t batch = 0;  ///< of the epoch, before which it ended
  };
  /// Notes that this rank ends the epoch before a batch. All ranks must do the same: an error of one that did not can
  /// say so. Returns when the others can see it, or after some seconds if the store does not answer.
  void note_early_end(int64_t epoch, int64_t batch);
  /// Returns what each rank noted last, in the order of the ranks, without those that never did.
  std::vector<EarlyEnd> early_ends();

  /// Publishes this rank's failure. The first failure of all ranks is the one that all of them report; later ones are
  /// dropped. Returns when the others can see it, or after some seconds if the store does not answer.
  void report_failure(const std::string& message);
  /// Tells the other ranks to expect nothing more of this one. The rank that serves the store stays until the others
  /// have left too, after a failure no longer than `grace`; it may be told meanwhile which of them are gone.
  void leave();
  /// Publishes that another rank is gone, as the launcher noticed; `how` follows its name in the message ("was ended by
  /// signal 9 (Killed)"). Otherwise as report_failure.
  void report_gone(int64_t rank, const std::string& how);
  /// Tells the others to expect nothing more of a rank that is gone, which is no failure: neither its heartbeat nor its
  /// part in the agreement on a stop is waited for. Warns of it unless `how` it ended is empty. For the rank whose
  /// launcher noticed; from any thread.
  void leave_out(int64_t rank, const std::string& how);
  /// Returns the first failure, unless this rank reported it; waits up to `patience` for one. A rank whose collective
  /// broke asks this before it reports that: the cause may be the end of another rank, which takes up to
  /// `heartbeat_timeout` to be noticed.
  std::optional<RankFailure> failure_of_other(std::chrono::milliseconds patience);
  /// Throws levin::Error "[ranks] rank 2 failed: ..." once a failure is known. Costs a relaxed load.
  void throw_if_failed();

 private:
  struct Impl;
  void report(const RankFailure& failure);
  /// Has the helper do something with the store; returns whether it is done, which it waits some seconds for. `errand`
  /// may outlive the call.
  bool run_errand(std::function<void(Store&)> errand);
  std::shared_ptr<Impl> impl_;
};

}  // namespace levin
