#include <levin/strategies/comm/shared_barrier.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/communication_error.h>
#include <levin/strategies/comm/c10d_error.h>
#include <levin/strategies/comm/futex.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;

/// Who aborts writes the reason right after; only a process killed in between never does.
constexpr std::chrono::seconds kReasonPatience{1};

/// After so much spinning in vain a rank gives it up, and tries it again once in so many waits.
constexpr uint32_t kVainLimit = 4;
constexpr uint32_t kTryEvery = 64;

}  // namespace

SharedBarrier::SharedBarrier(State& state, std::span<Arrival> arrivals) : state_(state), arrivals_(arrivals) {}

void SharedBarrier::wait(int64_t rank, const char* operation, std::chrono::milliseconds timeout, Spinning& spinning) {
  uint32_t round = state_.round.load(std::memory_order_acquire);
  if ((round & kAborted) != 0) throw_if_aborted();
  arrivals_[rank].round.store(round + kOneRound, std::memory_order_relaxed);
  if (state_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == arrivals_.size()) {
    state_.arrived.store(0, std::memory_order_relaxed);
    // Fails only if somebody aborted meanwhile: then this round stays incomplete for everybody.
    if (!state_.round.compare_exchange_strong(round, round + kOneRound, std::memory_order_seq_cst)) throw_if_aborted();
    if (state_.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(state_.round);
    return;
  }
  spin_until_over(round, spinning);
  sleep_until_over(round, operation, timeout);  // returns at once when it is
}

void SharedBarrier::spin_until_over(uint32_t round, Spinning& spinning) const {
  const auto is_over = [&] {
    for (int i = 0; i < 32; ++i) {
      if (state_.round.load(std::memory_order_acquire) != round) return true;
      spin_pause();
    }
    return false;
  };
  if (is_over()) return;
  if (spinning.vain >= kVainLimit && ++spinning.waits % kTryEvery != 0) return;
  for (const auto until = Clock::now() + spinning.longest; Clock::now() < until;) {
    if (!is_over()) continue;
    spinning.vain = 0;
    return;
  }
  spinning.vain = std::min(spinning.vain + 1, kVainLimit);
}

void SharedBarrier::sleep_until_over(uint32_t round, const char* operation, std::chrono::milliseconds timeout) {
  timeout = std::min<std::chrono::milliseconds>(timeout, kForever);
  std::chrono::nanoseconds slept{0};
  for (Clock::time_point started{};;) {
    const uint32_t now = state_.round.load(std::memory_order_acquire);
    if ((now & ~kAborted) != round) return;
    if ((now & kAborted) != 0) throw_if_aborted();

    if (started == Clock::time_point{}) started = Clock::now();
    slept = Clock::now() - started;
    if (slept >= timeout) {
      if (abort_round(round, fmt::format("{} timed out after {}; waiting for {}", operation, format_seconds(timeout),
                                         missing_ranks(round))))
        throw_if_aborted();
      continue;
    }
    if (is_gone_ && slept >= kLookAround) {
      for (size_t rank = 0; rank < arrivals_.size(); ++rank) {
        if (arrivals_[rank].round.load(std::memory_order_relaxed) == round + kOneRound ||
            !is_gone_(static_cast<int64_t>(rank)))
          continue;
        if (abort_round(round, fmt::format("{} failed; rank {} has ended or left", operation, rank))) break;
      }
      if (state_.round.load(std::memory_order_acquire) != round) continue;
    }
    state_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    futex_wait(state_.round, round, std::min<std::chrono::nanoseconds>(timeout - slept, kLookAround));
    state_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void SharedBarrier::abort(const std::string& reason) {
  if ((state_.round.fetch_or(kAborted, std::memory_order_seq_cst) & kAborted) == 0) write_reason(reason);
}

bool SharedBarrier::abort_round(uint32_t round, const std::string& reason) {
  if (!state_.round.compare_exchange_strong(round, round | kAborted, std::memory_order_seq_cst)) return false;
  write_reason(reason);
  return true;
}

void SharedBarrier::write_reason(const std::string& reason) {
  const size_t length = std::min(reason.size(), sizeof(state_.reason) - 1);
  std::memcpy(state_.reason, reason.data(), length);
  state_.reason[length] = '\0';
  state_.reason_written.store(1, std::memory_order_release);
  futex_wake_all(state_.round);
  futex_wake_all(state_.reason_written);
}

void SharedBarrier::throw_if_aborted() const {
  if (!is_aborted()) return;
  for (const auto give_up = Clock::now() + kReasonPatience; Clock::now() < give_up;) {
    if (state_.reason_written.load(std::memory_order_acquire) != 0)
      throw CommunicationError("shared_memory", state_.reason);
    futex_wait(state_.reason_written, 0, std::chrono::milliseconds(10));
  }
  throw CommunicationError("shared_memory", "another rank aborted the communication and ended before it could say why");
}

std::string SharedBarrier::missing_ranks(uint32_t round) const {
  std::vector<std::string> missing;
  for (size_t rank = 0; rank < arrivals_.size(); ++rank)
    if (arrivals_[rank].round.load(std::memory_order_relaxed) != round + kOneRound)
      missing.push_back(std::to_string(rank));
  return fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", join(missing));
}

}  // namespace levin
