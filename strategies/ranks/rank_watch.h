#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/comm/rank_failure.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {

class Collective;
class ControlPlane;

/// Watches the ends of other ranks, from the first moment of a call to its last. A launcher tells of them on a thread
/// of its own, whatever the strategy does meanwhile: so this object, which both share, stands between it and the
/// control plane, which comes after the ranks have met and goes before the launcher's call is over. Methods are called
/// from any thread.
class RankWatch {
 public:
  /// Begins a call: ranks are about to wait for each other.
  void begin_joining();
  /// Tells the control plane, from here on, of ranks that end, of those that ended meanwhile too.
  void attach(ControlPlane& control);
  /// Adds a collective that ends with an error when a failure is known.
  void attach(const std::shared_ptr<Collective>& collective);
  /// Notes that all ranks have met. One that ends in good order, or is asked to, is no failure any more.
  void end_joining();
  /// Returns when nobody uses the control plane any more; to be called before it goes.
  void detach();

  /// Notes, for launchers, that a rank of this call has ended. `how` goes after its name.
  void rank_ended(int64_t rank, const std::string& how, bool in_good_order);
  /// From here on a rank from `first` on that is killed is left out, which ends nothing: see lose.
  void bear_losses(int64_t first);
  /// Ends that, and returns all ranks that were ever lost.
  std::vector<int64_t> end_losses();
  /// Notes, for launchers, that a rank was killed. False where that is a failure, to be told to rank_ended.
  bool lose(int64_t rank, const std::string& how);
  bool is_lost(int64_t rank);
  /// Aborts the collective, for the control plane.
  void abort(const std::string& reason);
  /// Says why there is no use in waiting for others: a rank has ended or failed, or, while ranks join, a signal asks
  /// this one, `rank`, to end.
  std::optional<RankFailure> failure(int64_t rank);

 private:
  Mutex mutex_;
  bool joining_ LEVIN_GUARDED_BY(mutex_) = true;
  ControlPlane* control_ LEVIN_GUARDED_BY(mutex_) = nullptr;
  std::optional<RankFailure> failure_ LEVIN_GUARDED_BY(mutex_);  ///< of the time before there was a control plane
  std::vector<std::weak_ptr<Collective>> collectives_ LEVIN_GUARDED_BY(mutex_);
  std::optional<int64_t> first_bearable_ LEVIN_GUARDED_BY(mutex_);  ///< of the ranks that may be lost now
  std::vector<int64_t> lost_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace levin
