#include <levin/core/connectors/pending_stop.h>

#include <levin/core/base/error.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>

namespace levin {

struct PendingStop::Shared {
  enum State : int { kNone, kWriting, kRequested };
  std::atomic<int> state{kNone};
  size_t length = 0;
  std::array<char, 2000> reason{};
};

PendingStop::PendingStop() {
  static_assert(std::atomic<int>::is_always_lock_free, "levin: processes share it");
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("trainer", "there is no memory for a trainer");
  shared_ = new (memory) Shared;
}

PendingStop::~PendingStop() { munmap(shared_, sizeof(Shared)); }

void PendingStop::request(const std::string& reason) {
  int none = Shared::kNone;
  if (!shared_->state.compare_exchange_strong(none, Shared::kWriting)) return;
  const std::string text = reason.empty() ? "no reason was given" : reason;
  shared_->length = std::min(text.size(), shared_->reason.size());
  std::copy_n(text.begin(), shared_->length, shared_->reason.begin());
  shared_->state.store(Shared::kRequested, std::memory_order_release);
}

bool PendingStop::is_requested() const { return shared_->state.load(std::memory_order_acquire) == Shared::kRequested; }

std::string PendingStop::reason() const {
  return is_requested() ? std::string(shared_->reason.data(), shared_->length) : "";
}

void PendingStop::clear() { shared_->state.store(Shared::kNone); }

}  // namespace levin
