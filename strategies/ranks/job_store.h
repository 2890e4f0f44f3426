#pragma once

#include <levin/core/base/mutex.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/strategies/comm/watched_store.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>

namespace c10d {
class Store;
}

namespace levin {

/// The store through which the ranks of this program found each other, where ranks are processes that live as long as
/// the program: one connection a process, which all trainers of the program share.
class JobStore {
 public:
  static JobStore& instance();

  /// Serves the store from this process, unless it does so already; returns its port.
  int64_t serve(std::chrono::milliseconds timeout);
  /// A part of the store of its own for each call in a process: every rank makes the same calls in the same order.
  /// Connects at the first one, as connect_store does.
  c10::intrusive_ptr<c10d::Store> join(const ClusterPlace& place, std::chrono::milliseconds timeout,
                                       const WaitingInVain& in_vain);

 private:
  JobStore() = default;

  Mutex mutex_;
  c10::intrusive_ptr<c10d::Store> served_ LEVIN_GUARDED_BY(mutex_);
  c10::intrusive_ptr<c10d::Store> store_ LEVIN_GUARDED_BY(mutex_);
  int64_t port_ LEVIN_GUARDED_BY(mutex_) = 0;
  int64_t joined_ LEVIN_GUARDED_BY(mutex_) = 0;
};

}  // namespace levin
