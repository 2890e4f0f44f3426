#include <levin/core/data/taken_batches.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/mutex.h>
#include <levin/core/data/batch_reader.h>
#include <levin/core/data/inline_source.h>
#include <levin/core/data/pinning_reader.h>
#include <levin/core/data/prefetch_source.h>
#include <levin/core/data/sized_reader.h>
#include <levin/core/data/worker_pool.h>

#include <deque>
#include <utility>
#include <vector>

namespace levin::data {
namespace {

/// The numbers of the batches that were taken, in the order in which they are fetched.
class Numbers {
 public:
  void push(int64_t number) {
    const MutexLock lock(mutex_);
    numbers_.push_back(number);
  }
  int64_t pop() {
    const MutexLock lock(mutex_);
    const int64_t first = numbers_.front();
    numbers_.pop_front();
    return first;
  }

 private:
  Mutex mutex_;
  std::deque<int64_t> numbers_ LEVIN_GUARDED_BY(mutex_);
};

class TakingReader : public BatchReader {
 public:
  TakingReader(std::shared_ptr<const SizedPass> pass, TakenBatches::Take take, std::shared_ptr<Numbers> numbers)
      : pass_(std::move(pass)), take_(std::move(take)), numbers_(std::move(numbers)) {}

  std::optional<Batch> next() override {
    const auto number = take_();
    if (!number) return std::nullopt;
    auto batch = SizedReader(pass_, *number, 1).next();
    if (batch) numbers_->push(*number);
    return batch;
  }

 private:
  std::shared_ptr<const SizedPass> pass_;
  TakenBatches::Take take_;
  std::shared_ptr<Numbers> numbers_;
};

}  // namespace

struct TakenBatches::State {
  std::shared_ptr<SizedPass> pass = std::make_shared<SizedPass>();
  std::shared_ptr<Numbers> numbers = std::make_shared<Numbers>();
  std::shared_ptr<BatchSource> source;
  std::chrono::nanoseconds waited{0};
};

TakenBatches::TakenBatches(const DataLoader& loader, const DataLoaderPosition& position, Take take)
    : state_(std::make_unique<State>()) {
  SizedPass& pass = *state_->pass;
  const DataLoaderOptions& options = loader.options();
  pass.dataset = loader.dataset();
  pass.seed = position.seed;
  pass.epoch = position.epoch;
  if (options.on_error == OnError::kSkip)
    pass.skipped = std::make_shared<SkippedExamples>(position.epoch, loader.num_examples().value_or(0));
  set_order(pass, *loader.sampler(),
            {.batch_size = loader.has_batch_sampler() ? 1 : loader.batch_size(position.world_size),
             .drop_last = options.drop_last,
             .first = position.first_example});
  std::unique_ptr<BatchReader> reader = std::make_unique<TakingReader>(state_->pass, std::move(take), state_->numbers);
  if (options.pin_memory && AcceleratorRegistry::instance().uses_pinned_memory())
    reader = std::make_unique<PinningReader>(std::move(reader));
  if (options.num_workers == 0) {
    state_->source = std::make_shared<InlineSource>(std::move(reader));
    return;
  }
  std::vector<std::unique_ptr<BatchReader>> readers;
  readers.push_back(std::move(reader));
  state_->source = std::make_shared<PrefetchSource>(
      WorkerPool::make(1), std::move(readers),
      PrefetchSource::Options{.depth = 1, .timeout = PrefetchSource::timeout_of(options.timeout)});
}

TakenBatches::~TakenBatches() {
  state_->source.reset();
  if (state_->pass->skipped != nullptr) state_->pass->skipped->report();
}

std::optional<TakenBatches::Taken> TakenBatches::next() {
  auto batch = state_->source->next(state_->waited);
  if (!batch) return std::nullopt;
  return Taken{.number = state_->numbers->pop(), .batch = std::move(*batch)};
}

int64_t TakenBatches::examples(int64_t number) const { return state_->pass->plan.global_count(number); }

std::chrono::nanoseconds TakenBatches::waited() const { return state_->waited; }

}  // namespace levin::data
