#pragma once

#include <atomic>
#include <cstdint>

namespace levin {

/// Present activity of a rank: written by its own thread, read by helper threads, so that a stall can be explained.
/// Names are string literals. Writing costs a relaxed store.
struct RankStatus {
  std::atomic<const char*> activity{"starting"};  ///< the hook or phase of a step under way
  std::atomic<const char*> collective{nullptr};   ///< the collective that the rank waits in, or nullptr
  std::atomic<int64_t> batch{-1};                 ///< the training batch under way, counted over all epochs
  std::atomic<const char*> evaluation{nullptr};   ///< "validation", "test", ..., or nullptr outside of their batches
  std::atomic<int64_t> evaluation_loader{0};      ///< the loader that the evaluation is at
  std::atomic<int64_t> evaluation_batch{0};       ///< the batch of that loader
};

/// Marks the rank, during its lifetime, as waiting in a collective, for stall reports. Does nothing without a
/// rank_status.
class [[nodiscard]] WaitingIn {
 public:
  WaitingIn(RankStatus* rank_status, const char* collective) : rank_status_(rank_status) {
    if (rank_status_ != nullptr) before_ = rank_status_->collective.exchange(collective, std::memory_order_relaxed);
  }
  ~WaitingIn() {
    if (rank_status_ != nullptr) rank_status_->collective.store(before_, std::memory_order_relaxed);
  }
  WaitingIn(const WaitingIn&) = delete;
  WaitingIn& operator=(const WaitingIn&) = delete;

 private:
  RankStatus* rank_status_;
  const char* before_ = nullptr;
};

/// Marks the rank, during its lifetime, as being at the batches of an evaluation's loader.
class [[nodiscard]] EvaluatingLoader {
 public:
  /// `evaluation`: a string literal.
  EvaluatingLoader(RankStatus& rank_status, const char* evaluation, int64_t loader) : rank_status_(rank_status) {
    rank_status_.evaluation_loader.store(loader, std::memory_order_relaxed);
    rank_status_.evaluation.store(evaluation, std::memory_order_relaxed);
  }
  ~EvaluatingLoader() { rank_status_.evaluation.store(nullptr, std::memory_order_relaxed); }
  EvaluatingLoader(const EvaluatingLoader&) = delete;
  EvaluatingLoader& operator=(const EvaluatingLoader&) = delete;

  void begin_batch(int64_t batch) { rank_status_.evaluation_batch.store(batch, std::memory_order_relaxed); }

 private:
  RankStatus& rank_status_;
};

}  // namespace levin
