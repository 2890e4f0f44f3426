#pragma once

#include <levin/core/base/mutex.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace levin {

class Store;

/// Agreement of all ranks on the training batch before which they stop, at no cost while no rank asks for a stop.
///
/// After a request the helper of each rank closes a gate in front of the first batch that its rank has not begun, and
/// publishes that batch as its candidate. All stop before the greatest candidate: no rank has begun it, and a rank that
/// is behind goes on up to it. Helpers publish whatever the rank's own thread does, so a rank that waits at its gate
/// never waits for one that is blocked in a collective.
class StopAgreement {
 public:
  StopAgreement(std::string prefix, int64_t rank, int64_t world_size);

  // --- on the rank's own thread ---

  /// Announces that the rank is about to begin `batch`. True: it may, at the cost of two atomic operations. False: ask
  /// `stops_before`.
  bool may_begin(int64_t batch) {
    // Ordered against `close_gate`: either this sees the gate closed, or the helper sees this batch begun.
    begun_.store(batch, std::memory_order_seq_cst);
    return batch < gate_.load(std::memory_order_seq_cst);
  }
  /// Returns whether all ranks stop before `batch`; waits until they agree. False after `interrupt`.
  bool stops_before(int64_t batch);
  /// Returns the same of a rank that begins no batch from `batch` on, whatever the others do; waits until all agree on
  /// a request.
  bool all_stop_before(int64_t batch);
  /// Opens the gate for further requests: of another training, whose batches may be counted from 0 again, or, on all
  /// ranks before the same batch, after one that does not end this training yet.
  void forget();

  // --- on any thread ---

  void request(const std::string& reason);
  /// Returns the reason of the request that ranks agreed on, the same on all; before, that of the first request that
  /// reached this rank; empty without one.
  std::string reason() const;
  /// Ends all waiting for good; no batch may begin from now on.
  void interrupt();
  /// Returns whether the rank's own thread waits for the others now.
  bool is_awaited() const { return awaited_.load(std::memory_order_relaxed); }

  // --- on the helper thread; nothing here blocks for other ranks ---

  /// Reads requests, publishes this rank's candidate and reads the agreement.
  void step(Store& store);
  /// Publishes that the rank begins no further batch, so that the others do not wait for its candidate.
  void leave(Store& store);
  /// From the next step on, agrees for all without the candidate of another rank, which is gone.
  void leave_out(int64_t rank) { left_out_.push_back(rank); }

 private:
  static constexpr int64_t kOpen = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kClosed = std::numeric_limits<int64_t>::min();

  std::string key(const char* name, int64_t round) const;
  void close_gate(int64_t round, const std::string& reason);
  void publish_candidate(Store& store, int64_t round);
  void agree_without(Store& store, int64_t round) const;
  void settle(int64_t round, int64_t stop_at, const std::string& reason);

  const std::string prefix_;
  const int64_t rank_;
  const int64_t world_size_;

  std::atomic<int64_t> begun_{-1};    ///< the last batch that the rank began or asked for
  std::atomic<int64_t> gate_{kOpen};  ///< batches before it may begin
  std::atomic<bool> awaited_{false};
  std::vector<int64_t> left_out_;  ///< the helper's

  mutable Mutex mutex_;
  ConditionVariable changed_;
  int64_t round_ LEVIN_GUARDED_BY(mutex_) = 0;       ///< grows with `forget`; a part of each key
  std::string reason_ LEVIN_GUARDED_BY(mutex_);      ///< of the request agreed on, or the first one
  bool requested_ LEVIN_GUARDED_BY(mutex_) = false;  ///< by this rank
  bool closed_ LEVIN_GUARDED_BY(mutex_) = false;     ///< the helper has closed the gate in this round
  bool published_ LEVIN_GUARDED_BY(mutex_) = false;  ///< this rank's candidate is in the store
  bool agreed_ LEVIN_GUARDED_BY(mutex_) = false;     ///< the gate stands where all ranks stop
  bool interrupted_ LEVIN_GUARDED_BY(mutex_) = false;
};

}  // namespace levin
