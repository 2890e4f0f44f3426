#include <levin/strategies/comm/backend_watch.h>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>

namespace levin {
namespace {

using c10d::ErrorType;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A backend that says what a test sets.
class TellingBackend : public c10d::Backend {
 public:
  TellingBackend() : c10d::Backend(0, 2) {}
  const std::string getBackendName() const override { return "telling"; }
  ErrorType getError() override {
    ++asked;
    return error;
  }
  std::atomic<ErrorType> error{ErrorType::SUCCESS};
  std::atomic<int> asked{0};
};

/// Returns what a watch calls with when the backend's error becomes `error`.
std::string reason_of(ErrorType error) {
  const auto backend = c10::make_intrusive<TellingBackend>();
  std::promise<std::string> reason;
  auto told = reason.get_future();
  const BackendWatch watch(backend, milliseconds(1500), [&](const std::string& text) { reason.set_value(text); });
  backend->error = error;
  return told.wait_for(seconds(60)) == std::future_status::ready ? told.get() : "nothing";
}

TEST(BackendWatchTest, SaysOnceWhatTheBackendTells) {
  EXPECT_EQ(reason_of(ErrorType::TIMEOUT),
            "an operation of telling timed out after 1.5 s; hint: another rank did not come to it");
  EXPECT_EQ(reason_of(ErrorType::COMM_ERROR), "telling reports an error; hint: NCCL_DEBUG=INFO prints more");
  EXPECT_EQ(reason_of(ErrorType::REMOTE_ERROR), "telling reports an error on another rank");
}

TEST(BackendWatchTest, SaysNothingWhileAllIsWell) {
  const auto backend = c10::make_intrusive<TellingBackend>();
  bool told = false;
  {
    const BackendWatch watch(backend, seconds(1), [&](const std::string&) { told = true; });
    while (backend->asked < 2) std::this_thread::yield();
  }
  EXPECT_FALSE(told);
}

TEST(BackendWatchTest, ABackendThatDoesNotTellIsLeftAlone) {
  class Silent : public c10d::Backend {
   public:
    Silent() : c10d::Backend(0, 2) {}
    ErrorType getError() override {
      asked.set_value();
      return c10d::Backend::getError();
    }
    std::promise<void> asked;
  };
  const auto backend = c10::make_intrusive<Silent>();
  const BackendWatch watch(backend, seconds(1), [](const std::string&) { FAIL(); });
  backend->asked.get_future().wait();
}

}  // namespace
}  // namespace levin
