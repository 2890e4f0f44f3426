#pragma once

#include <levin/core/base/end_process.h>
#include <levin/core/base/mutex.h>
#include <levin/core/comm/rank_status.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace levin {

/// Notices that a rank hangs which is alone, so that no other one and no control plane would: when it has been in one
/// part of a step of training, validation, test or prediction for `hang_after`. Then its process ends, with a message
/// that says in which. Time in which the process did not run does not count. The rank pays nothing; a thread looks once
/// a second.
class HangWatch {
 public:
  /// `rank_status` outlives the watch. `give_up` is called once, from the watch's thread; tests replace it.
  HangWatch(const RankStatus& rank_status, std::chrono::milliseconds hang_after,
            std::function<void(const std::string& reason)> give_up = end_process);
  ~HangWatch();
  HangWatch(const HangWatch&) = delete;
  HangWatch& operator=(const HangWatch&) = delete;

 private:
  void watch();

  const RankStatus& rank_status_;
  const std::chrono::milliseconds hang_after_;
  const std::function<void(const std::string& reason)> give_up_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool over_ LEVIN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// Watches a rank; nullptr, which is no watch, where `rank_status` is, and where `hang_timeout`, in seconds, is 0.
std::unique_ptr<HangWatch> make_hang_watch(const RankStatus* rank_status, double hang_timeout);

}  // namespace levin
