#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace levin {

/// Barrier at which ranks, threads or processes, wait for one another. Its state lies in memory that all of them map;
/// this object is one rank's (or one process's) view of it. A wait ends when all ranks have arrived, or throws
/// CommunicationError: after abort(), after its time-out (which aborts the barrier for everybody), or when a missing
/// rank is gone for good.
class SharedBarrier {
 public:
  /// All zero is a fresh barrier.
  struct State {
    /// Twice the number of rounds completed; the lowest bit says aborted. One word holds both, so that a round is
    /// either completed or aborted for all ranks alike. Waiters sleep on it.
    alignas(64) std::atomic<uint32_t> round;
    alignas(64) std::atomic<uint32_t> arrived;
    std::atomic<uint32_t> sleepers;
    alignas(64) std::atomic<uint32_t> reason_written;
    char reason[2044];
  };
  /// The round that a rank has arrived at: says whom a time-out waits for.
  struct Arrival {
    alignas(64) std::atomic<uint32_t> round;
  };

  /// State of a rank's waiting at one place of its program: it spins, because the others mostly come soon, and waking
  /// from sleep takes long. Where they did not come in time again and again (other threads want the processors, or the
  /// ranks' shares of work differ) it sleeps at once, and only now and then tries whether spinning pays again.
  struct Spinning {
    std::chrono::nanoseconds longest{0};  ///< worth spinning for
    uint32_t vain = 0;                    ///< times in a row that spinning was in vain
    uint32_t waits = 0;                   ///< since spinning was given up
  };

  /// The longest time-out; nobody waits so long.
  static constexpr std::chrono::hours kForever{24 * 365};

  /// Time to sleep before looking whether a rank that is missing is still there.
  static constexpr std::chrono::milliseconds kLookAround{100};

  /// `arrivals` has one element a rank.
  SharedBarrier(State& state, std::span<Arrival> arrivals);

  /// Asked, while sleeping, of ranks that have not arrived: whether they never will.
  void set_is_gone(std::function<bool(int64_t rank)> is_gone) { is_gone_ = std::move(is_gone); }

  /// `operation` is what the rank is doing, for messages.
  void wait(int64_t rank, const char* operation, std::chrono::milliseconds timeout, Spinning& spinning);

  /// Makes every wait that cannot complete any more, and every later one, throw an error with this reason, on all
  /// ranks. The first reason counts. From any thread.
  void abort(const std::string& reason);
  bool is_aborted() const { return (state_.round.load(std::memory_order_acquire) & kAborted) != 0; }
  /// Throws the reason of abort(), if it was called.
  void throw_if_aborted() const;

 private:
  static constexpr uint32_t kAborted = 1;
  static constexpr uint32_t kOneRound = 2;

  void spin_until_over(uint32_t round, Spinning& spinning) const;
  void sleep_until_over(uint32_t round, const char* operation, std::chrono::milliseconds timeout);
  /// Aborts unless the round has been completed meanwhile; returns whether it did.
  bool abort_round(uint32_t round, const std::string& reason);
  void write_reason(const std::string& reason);
  std::string missing_ranks(uint32_t round) const;

  State& state_;
  std::span<Arrival> arrivals_;
  std::function<bool(int64_t)> is_gone_;
};

}  // namespace levin
