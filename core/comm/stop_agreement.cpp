#include <levin/core/comm/stop_agreement.h>

#include <levin/core/comm/collective.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace levin {
StopAgreement::StopAgreement(std::string prefix, int64_t rank, int64_t world_size)
    : prefix_(std::move(prefix)), rank_(rank), world_size_(world_size) {}

std::string StopAgreement::key(const char* name, int64_t round) const {
  return fmt::format("{}/{}/{}", prefix_, name, round);
}

bool StopAgreement::stops_before(int64_t batch) {
  MutexLock lock(mutex_);
  awaited_ = true;
  changed_.wait(lock, [&]() LEVIN_REQUIRES(mutex_) { return agreed_ || interrupted_ || batch < gate_; });
  awaited_ = false;
  return batch >= gate_ && !interrupted_;
}

bool StopAgreement::all_stop_before(int64_t batch) {
  MutexLock lock(mutex_);
  awaited_ = true;
  changed_.wait(lock, [this]() LEVIN_REQUIRES(mutex_) { return agreed_ || interrupted_; });
  awaited_ = false;
  return batch >= gate_ && !interrupted_;
}

void StopAgreement::forget() {
  const MutexLock lock(mutex_);
  ++round_;
  reason_.clear();
  requested_ = closed_ = published_ = agreed_ = false;
  begun_ = -1;
  if (!interrupted_) gate_ = kOpen;
}

void StopAgreement::request(const std::string& reason) {
  const MutexLock lock(mutex_);
  if (!requested_ && reason_.empty()) reason_ = reason;
  requested_ = true;
}

std::string StopAgreement::reason() const {
  const MutexLock lock(mutex_);
  return reason_;
}

void StopAgreement::interrupt() {
  {
    const MutexLock lock(mutex_);
    interrupted_ = true;
    gate_ = kClosed;
  }
  changed_.notify_all();
}

void StopAgreement::step(Store& store) {
  MutexLock lock(mutex_);
  if (agreed_ || interrupted_) return;
  const int64_t round = round_;
  const bool requested = requested_;
  const bool closed = closed_;
  std::string reason = reason_;
  lock.unlock();

  if (!closed) {
    const std::string request_key = key("stop", round);
    if (store.contains(request_key)) {
      reason = store.get(request_key, kAnswerTime);
    } else if (requested) {
      store.set(request_key, reason);
    } else {
      return;
    }
    close_gate(round, reason);
  }
  publish_candidate(store, round);
  if (!left_out_.empty()) agree_without(store, round);
  const std::string agreed_key = key("stop_at", round);
  if (!store.contains(agreed_key)) return;
  // Ranks that ask at the same time write one after the other. Now that all have published, none writes any more.
  reason = store.get(key("stop", round), kAnswerTime);
  settle(round, std::stoll(store.get(agreed_key, kAnswerTime)), reason);
}

void StopAgreement::leave(Store& store) {
  MutexLock lock(mutex_);
  const int64_t round = round_;
  lock.unlock();
  publish_candidate(store, round);
}

void StopAgreement::close_gate(int64_t round, const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    if (round_ != round || interrupted_) return;
    if (reason_.empty()) reason_ = reason;
    closed_ = true;
    gate_.store(kClosed, std::memory_order_seq_cst);
    gate_.store(begun_.load(std::memory_order_seq_cst) + 1, std::memory_order_seq_cst);
  }
  changed_.notify_all();
}

void StopAgreement::publish_candidate(Store& store, int64_t round) {
  int64_t stop_at = 0;
  {
    const MutexLock lock(mutex_);
    if (published_ || round_ != round) return;
    published_ = true;
    // A rank that leaves before a request has no gate: what it has begun counts all the same.
    stop_at = closed_ && !interrupted_ ? gate_.load() : begun_.load() + 1;
  }
  const auto candidate_key = [&](int64_t rank) { return fmt::format("{}/{}", key("candidate", round), rank); };
  store.set(candidate_key(rank_), std::to_string(stop_at));
  if (store.add(key("candidates", round), 1) < world_size_) return;
  // The last rank reads them all, so that the others read one key.
  for (int64_t rank = 0; rank < world_size_; ++rank)
    stop_at = std::max<int64_t>(stop_at, std::stoll(store.get(candidate_key(rank), kAnswerTime)));
  store.set(key("stop_at", round), std::to_string(stop_at));
}

/// The count of candidates does not reach the number of ranks where one is gone: each is asked for instead. The result
/// is the one that the last rank to publish would have found.
void StopAgreement::agree_without(Store& store, int64_t round) const {
  int64_t stop_at = 0;
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    const std::string candidate_key = fmt::format("{}/{}", key("candidate", round), rank);
    if (store.contains(candidate_key))
      stop_at = std::max<int64_t>(stop_at, std::stoll(store.get(candidate_key, kAnswerTime)));
    else if (std::find(left_out_.begin(), left_out_.end(), rank) == left_out_.end())
      return;
  }
  store.set(key("stop_at", round), std::to_string(stop_at));
}

void StopAgreement::settle(int64_t round, int64_t stop_at, const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    if (round_ != round || interrupted_) return;
    agreed_ = true;
    reason_ = reason;
    gate_ = stop_at;
  }
  changed_.notify_all();
}

}  // namespace levin
