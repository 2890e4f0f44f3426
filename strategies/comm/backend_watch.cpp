#include <levin/strategies/comm/backend_watch.h>

#include <levin/strategies/comm/c10d_error.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <utility>

namespace levin {
namespace {

constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

BackendWatch::BackendWatch(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout,
                           std::function<void(const std::string& reason)> on_failure)
    : backend_(std::move(backend)),
      timeout_(timeout),
      on_failure_(std::move(on_failure)),
      thread_([this] { watch(); }) {}

BackendWatch::~BackendWatch() {
  {
    const MutexLock lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

std::string BackendWatch::failure() const {
  switch (backend_->getError()) {
    case c10d::ErrorType::SUCCESS:
      return "";
    case c10d::ErrorType::TIMEOUT:
      return fmt::format("an operation of {} timed out after {}; hint: another rank did not come to it",
                         backend_->getBackendName(), format_seconds(timeout_));
    case c10d::ErrorType::REMOTE_ERROR:
      return fmt::format("{} reports an error on another rank", backend_->getBackendName());
    default:
      return fmt::format("{} reports an error; hint: NCCL_DEBUG=INFO prints more", backend_->getBackendName());
  }
}

void BackendWatch::watch() {
  MutexLock lock(mutex_);
  while (!ended_.wait_for(lock, kInterval, [this]() LEVIN_REQUIRES(mutex_) { return is_over_; })) {
    std::string reason;
    try {
      reason = failure();
    } catch (const c10::Error&) {
      return;  // a backend that does not tell
    }
    if (reason.empty()) continue;
    lock.unlock();
    on_failure_(reason);
    return;
  }
}

}  // namespace levin
