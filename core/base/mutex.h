#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>

// What clang's thread safety analysis (-Wthread-safety) is told; nothing for other compilers. The names are those of
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html.
#ifdef __clang__
#define LEVIN_THREAD_SAFETY_ATTRIBUTE(x) __attribute__((x))
#else
#define LEVIN_THREAD_SAFETY_ATTRIBUTE(x)
#endif

/// Of a class: its objects are locks; `x` is what messages call them.
#define LEVIN_CAPABILITY(x) LEVIN_THREAD_SAFETY_ATTRIBUTE(capability(x))
/// Of a class: its objects hold a lock from their beginning to their end.
#define LEVIN_SCOPED_CAPABILITY LEVIN_THREAD_SAFETY_ATTRIBUTE(scoped_lockable)
/// Of a variable: it is read and written while this lock is held only.
#define LEVIN_GUARDED_BY(x) LEVIN_THREAD_SAFETY_ATTRIBUTE(guarded_by(x))
/// Of a lock: where both are held, it was taken before these.
#define LEVIN_ACQUIRED_BEFORE(...) LEVIN_THREAD_SAFETY_ATTRIBUTE(acquired_before(__VA_ARGS__))
/// Of a function or a lambda: its callers hold these locks.
#define LEVIN_REQUIRES(...) LEVIN_THREAD_SAFETY_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// Of a function: its callers do not hold these locks.
#define LEVIN_EXCLUDES(...) LEVIN_THREAD_SAFETY_ATTRIBUTE(locks_excluded(__VA_ARGS__))
/// Of a function: it takes these locks, or the object's, and returns with them held.
#define LEVIN_ACQUIRE(...) LEVIN_THREAD_SAFETY_ATTRIBUTE(acquire_capability(__VA_ARGS__))
/// Of a function: it gives up these locks, or the object's.
#define LEVIN_RELEASE(...) LEVIN_THREAD_SAFETY_ATTRIBUTE(release_capability(__VA_ARGS__))
/// Of a function: it holds the object's lock when it returned the value.
#define LEVIN_TRY_ACQUIRE(...) LEVIN_THREAD_SAFETY_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
/// Of a function: it is not checked, for a reason that stands beside it.
#define LEVIN_NO_THREAD_SAFETY_ANALYSIS LEVIN_THREAD_SAFETY_ATTRIBUTE(no_thread_safety_analysis)

namespace levin {

/// A std::mutex whose use clang checks. Members that it guards say so: `int64_t count_ LEVIN_GUARDED_BY(mutex_) = 0;`.
class LEVIN_CAPABILITY("mutex") Mutex {
 public:
  void lock() LEVIN_ACQUIRE() { mutex_.lock(); }
  void unlock() LEVIN_RELEASE() { mutex_.unlock(); }
  /// Returns whether the lock was free, and is now held.
  [[nodiscard]] bool try_lock() LEVIN_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Scope in which a Mutex is held, except between unlock() and lock().
class LEVIN_SCOPED_CAPABILITY [[nodiscard]] MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LEVIN_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  /// Takes over a lock that is held: one of Mutex::try_lock.
  MutexLock(Mutex& mutex, std::adopt_lock_t held) LEVIN_REQUIRES(mutex) : lock_(mutex.mutex_, held) {}
  ~MutexLock() LEVIN_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() LEVIN_ACQUIRE() { lock_.lock(); }
  void unlock() LEVIN_RELEASE() { lock_.unlock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

/// A std::condition_variable for a MutexLock, which is held when a wait begins and when it returns. Conditions that
/// read what the mutex guards are lambdas that say so: `[this]() LEVIN_REQUIRES(mutex_) { return is_over_; }`.
class ConditionVariable {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  template <class Predicate>
  void wait(MutexLock& lock, Predicate is_met) {
    condition_.wait(lock.lock_, std::move(is_met));
  }
  /// Returns whether the condition is met.
  template <class Duration, class Predicate>
  bool wait_for(MutexLock& lock, const Duration& time, Predicate is_met) {
    return condition_.wait_for(lock.lock_, time, std::move(is_met));
  }
  template <class Time>
  std::cv_status wait_until(MutexLock& lock, const Time& deadline) {
    return condition_.wait_until(lock.lock_, deadline);
  }
  /// Returns whether the condition is met.
  template <class Time, class Predicate>
  bool wait_until(MutexLock& lock, const Time& deadline, Predicate is_met) {
    return condition_.wait_until(lock.lock_, deadline, std::move(is_met));
  }

 private:
  std::condition_variable condition_;
};

}  // namespace levin
