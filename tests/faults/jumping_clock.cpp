// A clock that is set back and forth, for LD_PRELOAD: five times a second the time of day is off by another amount, up
// to a day, the same one in all processes of the machine. The monotonic clock goes on as ever, and a wait until a time
// of day ends when this clock shows it, as in a kernel whose clock is set.

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/time.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStay = kSecond / 5;    ///< how long the clock is off by one amount
constexpr int64_t kSlice = kSecond / 50;  ///< a wait looks at the clock so often
constexpr std::array<int64_t, 7> kOffsets = {0, 3600, -3600, 86400, -86400, 2, -2};

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int64_t nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }
timespec to_timespec(int64_t nanoseconds) { return {nanoseconds / kSecond, nanoseconds % kSecond}; }

int64_t real(clockid_t clock) {
  static const auto get = next<int (*)(clockid_t, timespec*)>("clock_gettime");
  timespec now{};
  get(clock, &now);
  return nanoseconds(now);
}

int64_t offset() {
  const auto turn = static_cast<uint64_t>(real(CLOCK_MONOTONIC) / kStay);
  return kOffsets[(turn * 0x9E3779B97F4A7C15u >> 32) % kOffsets.size()] * kSecond;
}

bool is_time_of_day(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

/// Waits by `wait`, which takes a real time of day, until this clock shows `deadline`.
template <class Wait>
int wait_until(const timespec* deadline, const Wait& wait) {
  // Up to thirty years are the time since the machine was started: of an object that goes by the monotonic clock.
  if (nanoseconds(*deadline) < 1'000'000'000 * kSecond) return wait(*deadline);
  for (;;) {
    const int64_t left = nanoseconds(*deadline) - offset() - real(CLOCK_REALTIME);
    const int result = wait(to_timespec(real(CLOCK_REALTIME) + std::clamp(left, int64_t{0}, kSlice)));
    if (result != ETIMEDOUT || left <= kSlice) return result;
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  *now = to_timespec(real(clock) + (is_time_of_day(clock) ? offset() : 0));
  return 0;
}

int gettimeofday(timeval* __restrict now, void* __restrict) noexcept {
  const int64_t time = real(CLOCK_REALTIME) + offset();
  *now = {time / kSecond, time % kSecond / 1000};
  return 0;
}

time_t time(time_t* now) noexcept {
  const time_t seconds = (real(CLOCK_REALTIME) + offset()) / kSecond;
  if (now != nullptr) *now = seconds;
  return seconds;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline) {
  static const auto wait = next<int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  return wait_until(deadline, [&](const timespec& until) { return wait(condition, mutex, &until); });
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  static const auto wait =
      next<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>("pthread_cond_clockwait");
  return wait_until(deadline, [&](const timespec& until) { return wait(condition, mutex, clock, &until); });
}

int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* deadline) noexcept {
  static const auto lock = next<int (*)(pthread_mutex_t*, const timespec*)>("pthread_mutex_timedlock");
  return wait_until(deadline, [&](const timespec& until) { return lock(mutex, &until); });
}

int sem_timedwait(sem_t* semaphore, const timespec* deadline) {
  static const auto wait = next<int (*)(sem_t*, const timespec*)>("sem_timedwait");
  int result = wait_until(deadline, [&](const timespec& until) { return wait(semaphore, &until) == 0 ? 0 : errno; });
  if (result == 0) return 0;
  errno = result;
  return -1;
}

}  // extern "C"
