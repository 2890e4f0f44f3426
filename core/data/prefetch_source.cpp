#include <levin/core/data/prefetch_source.h>

#include <levin/core/base/error.h>
#include <levin/core/data/fetch_scope.h>

#include <utility>

namespace levin::data {

PrefetchSource::PrefetchSource(std::shared_ptr<WorkerPool> pool, std::vector<std::unique_ptr<BatchReader>> readers,
                               int64_t depth, int64_t turn)
    : pool_(std::move(pool)), turn_(static_cast<size_t>(turn)), running_(readers.size()) {
  LEVIN_CHECK(pool_->size() == static_cast<int64_t>(readers.size()), "one reader for each worker");
  for (auto& reader : readers) lanes_.push_back(std::make_unique<Lane>(std::move(reader), depth));
  ticket_ = pool_->start([this](int64_t worker) { fetch(*lanes_[static_cast<size_t>(worker)]); });
}

PrefetchSource::~PrefetchSource() { stop(); }

void PrefetchSource::stop() {
  for (auto& lane : lanes_) lane->queue.close();
  pool_->wait(ticket_);
}

void PrefetchSource::fetch(Lane& lane) {
  FetchScope scope;
  for (;;) {
    FetchResult result;
    try {
      result.batch = lane.reader->next();
    } catch (...) {
      result.error = std::current_exception();
    }
    const bool last = !result.batch.has_value();
    if (!lane.queue.push(std::move(result)) || last) return;
  }
}

std::optional<Batch> PrefetchSource::next(std::chrono::nanoseconds& waited) {
  while (running_ > 0) {
    Lane& lane = *lanes_[turn_];
    turn_ = (turn_ + 1) % lanes_.size();
    if (lane.ended) continue;
    auto result = lane.queue.pop(waited);
    if (!result) throw Error("data", "this pass over the data loader has ended because a new one was started");
    if (result->error) std::rethrow_exception(result->error);
    if (result->batch) return std::move(result->batch);
    lane.ended = true;
    --running_;
  }
  return std::nullopt;
}

}  // namespace levin::data
