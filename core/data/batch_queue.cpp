#include <levin/core/data/batch_queue.h>

#include <utility>

namespace levin::data {

bool BatchQueue::push(FetchResult result) {
  {
    MutexLock lock(mutex_);
    has_room_.wait(lock, [this]() LEVIN_REQUIRES(mutex_) { return closed_ || count_ < slots_.size(); });
    if (closed_) return false;
    slots_[(first_ + count_) % slots_.size()] = std::move(result);
    ++count_;
  }
  has_result_.notify_one();
  return true;
}

bool BatchQueue::wait(std::chrono::nanoseconds& waited, std::optional<std::chrono::nanoseconds> timeout) {
  MutexLock lock(mutex_);
  if (count_ > 0 || closed_) return true;
  const auto begin = std::chrono::steady_clock::now();
  const auto is_ready = [this]() LEVIN_REQUIRES(mutex_) { return closed_ || count_ > 0; };
  bool ready = true;
  if (timeout)
    ready = has_result_.wait_for(lock, *timeout, is_ready);
  else
    has_result_.wait(lock, is_ready);
  waited += std::chrono::steady_clock::now() - begin;
  return ready;
}

std::optional<FetchResult> BatchQueue::pop() {
  std::optional<FetchResult> result;
  {
    const MutexLock lock(mutex_);
    if (closed_ || count_ == 0) return std::nullopt;
    result = std::exchange(slots_[first_], {});
    first_ = (first_ + 1) % slots_.size();
    --count_;
  }
  has_room_.notify_one();
  return result;
}

void BatchQueue::close() {
  std::vector<FetchResult> dropped;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    count_ = 0;
    dropped.swap(slots_);
  }
  has_room_.notify_all();
  has_result_.notify_all();
}

}  // namespace levin::data
