#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace levin {

/// Sleeps while `word` holds `expected`, at most for `timeout`; may return early, so the caller looks again. Unlike
/// std::atomic::wait it has a time-out, and it works between processes that map the same memory.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout);

/// Wakes all threads, of any process, that sleep on `word`.
void futex_wake_all(const std::atomic<uint32_t>& word);

/// Tells the processor that this thread spins.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace levin
