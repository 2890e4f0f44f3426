#pragma once

#include <levin/core/base/mutex.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

namespace c10d {
class Backend;
}

namespace levin {

/// Watches a backend of c10d whose operations the host does not wait for, as NCCL's: that one of them has failed, or
/// took longer than the group's time-out, nothing but the backend's error state tells. Once it does, `on_failure` is
/// called with what happened, on a thread of this object.
class BackendWatch {
 public:
  BackendWatch(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout,
               std::function<void(const std::string& reason)> on_failure);
  /// Waits for on_failure to return.
  ~BackendWatch();
  BackendWatch(const BackendWatch&) = delete;
  BackendWatch& operator=(const BackendWatch&) = delete;

 private:
  /// Returns what the backend says has failed; empty where nothing has.
  std::string failure() const;
  void watch();

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::chrono::milliseconds timeout_;
  const std::function<void(const std::string& reason)> on_failure_;
  Mutex mutex_;
  ConditionVariable ended_;
  bool is_over_ LEVIN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace levin
