#include <levin/core/base/mutex.h>

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

/// Whether another thread could take the lock now.
bool is_free(Mutex& mutex) {
  bool was_free = false;
  std::thread([&] {
    if (!mutex.try_lock()) return;
    const MutexLock lock(mutex, std::adopt_lock);
    was_free = true;
  }).join();
  return was_free;
}

struct Mailbox {
  Mutex mutex;
  ConditionVariable changed;
  int letters LEVIN_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, IsHeldByOneThread) {
  Mutex mutex;
  EXPECT_TRUE(is_free(mutex));
  {
    const MutexLock lock(mutex);
    EXPECT_FALSE(is_free(mutex));
  }
  EXPECT_TRUE(is_free(mutex));
}

TEST(MutexLock, GivesUpAndTakesAgain) {
  Mutex mutex;
  {
    MutexLock lock(mutex);
    lock.unlock();
    EXPECT_TRUE(is_free(mutex));
    lock.lock();
    EXPECT_FALSE(is_free(mutex));
  }
  {
    MutexLock lock(mutex);
    lock.unlock();
  }
  EXPECT_TRUE(is_free(mutex));
}

TEST(ConditionVariable, WaitsForAnotherThreadWithoutTheLock) {
  Mailbox box;
  std::thread sender([&] {
    for (int i = 0; i < 3; ++i) {
      const MutexLock lock(box.mutex);
      ++box.letters;
      box.changed.notify_all();
    }
  });
  MutexLock lock(box.mutex);
  box.changed.wait(lock, [&]() LEVIN_REQUIRES(box.mutex) { return box.letters >= 1; });
  EXPECT_TRUE(box.changed.wait_for(lock, std::chrono::minutes(1),
                                   [&]() LEVIN_REQUIRES(box.mutex) { return box.letters >= 2; }));
  while (box.letters < 3) box.changed.wait(lock);
  EXPECT_FALSE(is_free(box.mutex));
  lock.unlock();
  sender.join();
}

TEST(ConditionVariable, StopsWaitingAtTheDeadline) {
  Mailbox box;
  MutexLock lock(box.mutex);
  const auto has_letter = [&]() LEVIN_REQUIRES(box.mutex) { return box.letters > 0; };
  EXPECT_FALSE(box.changed.wait_for(lock, std::chrono::milliseconds(5), has_letter));
  EXPECT_FALSE(box.changed.wait_until(lock, Clock::now() + std::chrono::milliseconds(5), has_letter));
  const auto deadline = Clock::now() + std::chrono::milliseconds(5);
  while (box.changed.wait_until(lock, deadline) != std::cv_status::timeout) continue;
  EXPECT_GE(Clock::now(), deadline);
  EXPECT_FALSE(is_free(box.mutex));
}

}  // namespace
}  // namespace levin
