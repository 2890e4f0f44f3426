#pragma once

#include <levin/core/base/lifeline.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/process_end.h>
#include <levin/core/base/stopped_time.h>
#include <levin/core/interfaces/cluster_environment.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

namespace levin {

/// The local ranks 1, 2, ... that this program, itself local rank 0, started as further runs of itself. There is one
/// such object in a process, since the ranks live as long as the program: they make the same calls of trainers one
/// after another, and go through the same main function to its end.
///
/// When the program ends, it waits a while for them to end as well, and then kills them. When it dies, they die
/// (Lifeline).
class LocalRanks {
 public:
  static LocalRanks& instance();

  struct End {
    int64_t rank;  ///< number of the rank in the whole job
    ProcessEnd how;
  };
  /// Returns whether the call goes on without the rank.
  using OnEnd = std::function<bool(int64_t rank, const ProcessEnd& how)>;

  /// A call of the trainer under way on all ranks.
  class Call {
   public:
    /// Throws levin::Error when a rank has ended already, unless calls go on without it and `may_lack_ranks`. `on_end`
    /// is called on another thread for each rank that ends meanwhile, never again after this object's end.
    Call(LocalRanks& ranks, OnEnd on_end, bool may_lack_ranks = false);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    /// Notes that the call failed on this rank, so that the others are not waited for long. Returns the rank whose
    /// violent end is the reason, if there is one: waits up to `patience` for it to be noticed.
    std::optional<End> fail(std::chrono::milliseconds patience);

   private:
    LocalRanks& ranks_;
    std::list<OnEnd>::iterator on_end_;
  };

  /// Starts the ranks that follow `first`, the place of this process, when called for the first time. Later calls check
  /// that the same number is wanted. Throws levin::Error.
  void start(const ClusterPlace& first);

  /// Sets the time that this program waits for the ranks at its own end, after success and after a failed call.
  void set_patience(std::chrono::milliseconds after_success, std::chrono::milliseconds after_failure);
  /// Sets the time after which a rank that was stopped (SIGSTOP), and that nobody continued, is killed.
  void set_stopped_limit(std::chrono::milliseconds limit) { stopped_limit_ = limit; }

 private:
  struct Rank {
    int64_t rank;
    pid_t process;
    std::optional<ProcessEnd> end;
    bool left_out = false;  ///< it has ended, and the calls go on without it
  };

  LocalRanks() = default;
  pid_t spawn(const ClusterPlace& place) const LEVIN_REQUIRES(mutex_);
  void kill_all() LEVIN_REQUIRES(mutex_);
  void supervise(Rank& rank);
  /// Waits until the process has ended, and leaves it in the table. Returns whether it was killed for having been
  /// stopped too long.
  bool wait_for_end(pid_t process) const;
  /// Runs at the end of the program.
  void finish();
  bool all_ended() const LEVIN_REQUIRES(mutex_);

  pid_t owner_ = -1;  ///< the process that started the ranks: its forks have none
  Mutex mutex_;
  ConditionVariable ended_;
  std::optional<int64_t> local_world_size_ LEVIN_GUARDED_BY(mutex_);  ///< once started
  std::optional<Lifeline> lifeline_ LEVIN_GUARDED_BY(mutex_);
  std::vector<Rank> ranks_ LEVIN_GUARDED_BY(mutex_);  ///< never resized once the ranks run
  bool failed_ LEVIN_GUARDED_BY(mutex_) = false;      ///< a call failed on this rank
  std::chrono::milliseconds patience_ LEVIN_GUARDED_BY(mutex_){10000};
  std::chrono::milliseconds patience_after_failure_ LEVIN_GUARDED_BY(mutex_){5000};
  std::atomic<std::chrono::milliseconds> stopped_limit_{kStoppedLimit};

  Mutex calls_mutex_ LEVIN_ACQUIRED_BEFORE(mutex_);  ///< held while on_end callbacks run
  std::list<OnEnd> calls_ LEVIN_GUARDED_BY(calls_mutex_);
};

}  // namespace levin
