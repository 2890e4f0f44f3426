#include <levin/core/data/prefetch_source.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/data/fetch_scope.h>

#include <fmt/format.h>

#include <utility>

namespace levin::data {

namespace {

double seconds_of(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::optional<std::chrono::nanoseconds> PrefetchSource::timeout_of(double seconds) {
  if (seconds <= 0) return std::nullopt;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

PrefetchSource::PrefetchSource(std::shared_ptr<WorkerPool> pool, std::vector<std::unique_ptr<BatchReader>> readers,
                               Options options)
    : options_(options), pool_(std::move(pool)), turn_(static_cast<size_t>(options.turn)), running_(readers.size()) {
  LEVIN_CHECK(pool_->size() == static_cast<int64_t>(readers.size()), "one reader for each worker");
  Lanes lanes;
  for (auto& reader : readers) lanes.push_back(std::make_unique<Lane>(std::move(reader), options_.depth));
  lanes_ = std::make_shared<const Lanes>(std::move(lanes));
  ticket_ = pool_->start([lanes = lanes_, traces = options_.timeout.has_value()](int64_t worker) {
    fetch(*(*lanes)[static_cast<size_t>(worker)], traces);
  });
}

PrefetchSource::~PrefetchSource() { stop(); }

void PrefetchSource::stop() {
  for (const auto& lane : *lanes_) lane->queue.close();
  if (pool_->wait(ticket_, options_.timeout)) return;
  pool_->abandon();
  std::string places;
  for (const auto& lane : *lanes_)
    if (const std::string place = lane->trace.describe(); !place.empty())
      places += (places.empty() ? "" : "; ") + place;
  log::warning(
      fmt::format("a worker of a data loader has not come back {} s after its pass ended, and is left to "
                  "itself: {}",
                  seconds_of(*options_.timeout), places));
}

void PrefetchSource::fetch(Lane& lane, bool traces) {
  FetchScope scope;
  std::optional<FetchTrace::Scope> trace;
  if (traces) trace.emplace(lane.trace);
  for (;;) {
    FetchResult result;
    try {
      result.batch = lane.reader->next();
    } catch (...) {
      result.error = std::current_exception();
    }
    FetchTrace::end_batch();
    const bool last = !result.batch.has_value();
    if (!lane.queue.push(std::move(result)) || last) return;
  }
}

void PrefetchSource::throw_timeout(const Lane& lane) {
  const std::string place = lane.trace.describe();
  for (const auto& other : *lanes_) other->queue.close();
  pool_->abandon();
  throw Error("data",
              fmt::format("a worker has given no batch for {} s, the loader's timeout; it is in {}; hint: does "
                          "that example hang, or is the timeout too short for a batch?",
                          seconds_of(*options_.timeout), place.empty() ? "no function of the data set" : place));
}

std::optional<Batch> PrefetchSource::next(std::chrono::nanoseconds& waited) {
  while (running_ > 0) {
    Lane& lane = *(*lanes_)[turn_];
    turn_ = (turn_ + 1) % lanes_->size();
    if (lane.ended) continue;
    if (!lane.queue.wait(waited, options_.timeout)) throw_timeout(lane);
    auto result = lane.queue.pop();
    if (!result) throw Error("data", "this pass over the data loader has ended because a new one was started");
    if (result->error) std::rethrow_exception(result->error);
    if (result->batch) return std::move(result->batch);
    lane.ended = true;
    --running_;
  }
  return std::nullopt;
}

}  // namespace levin::data
