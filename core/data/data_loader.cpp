#include <levin/core/data/data_loader.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/data/batch_plan.h>
#include <levin/core/data/batch_sampler.h>
#include <levin/core/data/data_notes.h>
#include <levin/core/data/fetch_scope.h>
#include <levin/core/data/inline_source.h>
#include <levin/core/data/loader_pass.h>
#include <levin/core/data/pinning_reader.h>
#include <levin/core/data/prefetch_source.h>
#include <levin/core/data/sized_reader.h>
#include <levin/core/data/stream_reader.h>
#include <levin/core/data/worker_pool.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace levin {

namespace {

void check_position(const DataLoaderPosition& position) {
  if (position.world_size < 1 || position.rank < 0 || position.rank >= position.world_size)
    throw Error("data", fmt::format("a pass over a data loader needs 0 <= rank < world_size; got rank {} of {}",
                                    position.rank, position.world_size));
  if (position.batch < 0 || position.epoch < 0)
    throw Error("data", fmt::format("a pass over a data loader cannot start at epoch {}, batch {}; valid: at least 0",
                                    position.epoch, position.batch));
}

void check_batch_sampler(const DataLoaderOptions& options) {
  if (options.batch_size == DataLoaderOptions().batch_size && !options.global_batch_size && !options.drop_last) return;
  throw Error("data",
              "a data loader was given a batch sampler and batch_size, global_batch_size or drop_last; hint: leave "
              "these out, the batch sampler says the batches");
}

}  // namespace

void DataLoaderOptions::describe(Schema<DataLoaderOptions>& schema) {
  using O = DataLoaderOptions;
  schema.field("batch_size", &O::batch_size, "examples in a batch of one rank").at_least(1).at_most(O::kMaxBatchSize);
  schema.field("shuffle", &O::shuffle, "visit the examples in an order drawn from seed and epoch");
  schema.field("num_workers", &O::num_workers, "threads that fetch batches ahead; 0 fetches in the calling thread")
      .at_least(0)
      .at_most(O::kMaxWorkers);
  schema.field("prefetch_factor", &O::prefetch_factor, "batches each worker keeps ready").at_least(1).at_most(10'000);
  schema.field("pin_memory", &O::pin_memory, "page-locked batches for faster copies to a CUDA device");
  schema.field("drop_last", &O::drop_last, "leave out the last batch when it is not full");
  schema
      .field("global_batch_size", &O::global_batch_size,
             "examples in a batch of all ranks together, divided by their number; replaces batch_size")
      .at_least(1)
      .at_most(O::kMaxBatchSize);
}

struct DataLoader::Core {
  DataLoaderOptions options;
  std::shared_ptr<const data::Dataset> dataset;
  std::shared_ptr<const data::Sampler> sampler;
  bool sampler_was_given = false;  ///< else it follows options.shuffle
  std::shared_ptr<const data::IterableDataset> iterable;

  std::mutex mutex;  ///< guards what follows: passes may be started from several threads
  std::shared_ptr<data::WorkerPool> pool;
  std::weak_ptr<data::BatchSource> running;

  int64_t checked_size() const {
    const int64_t size = noting_errors([this] { return dataset->size(); },
                                       [this](ErrorNotes& notes) {
                                         const data::Dataset& given = *dataset;
                                         data::note_data(notes, "size", typeid(given));
                                       });
    if (size < 0) throw Error("data", fmt::format("the data set says that it has {} examples", size));
    return size;
  }

  const data::BatchSampler* batch_sampler() const { return dynamic_cast<const data::BatchSampler*>(sampler.get()); }

  void require_one_batch_size() const {
    if (batch_sampler() == nullptr) return;
    throw Error("data",
                "the batches of a batch sampler differ in size, and what was asked for needs one size; hint: a sampler "
                "that says the order alone, with batch_size");
  }

  int64_t batch_size(int64_t world_size) const {
    require_one_batch_size();
    if (!options.global_batch_size) return options.batch_size;
    if (*options.global_batch_size % world_size != 0)
      throw Error("data", fmt::format("global_batch_size is {}, which {} ranks cannot share evenly; valid: a "
                                      "multiple of {}",
                                      *options.global_batch_size, world_size, world_size));
    return *options.global_batch_size / world_size;
  }

  data::BatchPlan plan(int64_t num_indices, int64_t rank, int64_t world_size, int64_t first) const {
    if (batch_sampler() != nullptr) return {.rank = rank, .world_size = world_size};
    return {.num_indices = num_indices,
            .batch_size = batch_size(world_size),
            .drop_last = options.drop_last,
            .rank = rank,
            .world_size = world_size,
            .first = first};
  }

  const std::shared_ptr<data::WorkerPool>& workers() {
    if (pool == nullptr || !pool->is_alive()) pool = data::WorkerPool::make(options.num_workers);
    return pool;
  }

  std::shared_ptr<data::BatchSource> make_source(std::vector<std::unique_ptr<data::BatchReader>> readers,
                                                 int64_t turn) {
    if (options.pin_memory && AcceleratorRegistry::instance().uses_pinned_memory()) {
      for (auto& reader : readers) reader = std::make_unique<data::PinningReader>(std::move(reader));
    }
    if (options.num_workers == 0) return std::make_shared<data::InlineSource>(std::move(readers.front()));
    return std::make_shared<data::PrefetchSource>(workers(), std::move(readers), options.prefetch_factor, turn);
  }

  std::unique_ptr<Pass::State> sized_pass(const DataLoaderPosition& position) {
    auto shared = std::make_shared<data::SizedPass>();
    shared->dataset = dataset;
    checked_size();
    shared->seed = position.seed;
    shared->epoch = position.epoch;
    data::set_order(*shared, *sampler,
                    plan(/*num_indices=*/0, position.rank, position.world_size, position.first_example));

    const int64_t count = std::max<int64_t>(options.num_workers, 1);
    std::vector<std::unique_ptr<data::BatchReader>> readers;
    for (int64_t i = 0; i < count; ++i)
      readers.push_back(std::make_unique<data::SizedReader>(shared, position.batch + i, count));
    auto source = make_source(std::move(readers), 0);
    running = source;
    return std::make_unique<Pass::State>(std::move(source), position.batch, shared->plan);
  }

  std::unique_ptr<Pass::State> unsized_pass(const DataLoaderPosition& position) {
    const int64_t count = std::max<int64_t>(options.num_workers, 1);
    std::vector<std::unique_ptr<data::StreamReader>> streams;
    for (int64_t i = 0; i < count; ++i) {
      const data::StreamContext context{.seed = position.seed,
                                        .epoch = position.epoch,
                                        .reader = position.rank * count + i,
                                        .num_readers = position.world_size * count};
      streams.push_back(
          std::make_unique<data::StreamReader>(iterable, context, batch_size(position.world_size), options.drop_last));
    }
    data::DealtReaders dealt = [&] {
      data::FetchScope scope;
      return data::deal_from(std::move(streams), position.batch);
    }();
    std::vector<std::unique_ptr<data::BatchReader>> readers;
    for (auto& reader : dealt.readers) readers.push_back(std::move(reader));
    auto source = make_source(std::move(readers), dealt.turn);
    running = source;
    return std::make_unique<Pass::State>(std::move(source), position.batch, std::nullopt);
  }
};

DataLoader::DataLoader(std::shared_ptr<const data::Dataset> dataset, const DataLoaderOptions& options,
                       std::shared_ptr<const data::Sampler> sampler)
    : core_(std::make_shared<Core>()) {
  if (dataset == nullptr) throw Error("data", "a data loader was given no data set (a null pointer)");
  schema_of<DataLoaderOptions>().validate(options, "data loader");
  if (options.shuffle && sampler != nullptr)
    throw Error("data",
                "a data loader was given both shuffle and a sampler; hint: leave out shuffle, the sampler says "
                "the order");
  if (dynamic_cast<const data::BatchSampler*>(sampler.get()) != nullptr) check_batch_sampler(options);
  core_->options = options;
  core_->dataset = std::move(dataset);
  core_->sampler_was_given = sampler != nullptr;
  if (sampler != nullptr)
    core_->sampler = std::move(sampler);
  else if (options.shuffle)
    core_->sampler = std::make_shared<data::RandomSampler>();
  else
    core_->sampler = std::make_shared<data::SequentialSampler>();
}

DataLoader::DataLoader(std::shared_ptr<const data::IterableDataset> dataset, const DataLoaderOptions& options)
    : core_(std::make_shared<Core>()) {
  if (dataset == nullptr) throw Error("data", "a data loader was given no data set (a null pointer)");
  schema_of<DataLoaderOptions>().validate(options, "data loader");
  if (options.shuffle)
    throw Error("data",
                "shuffle needs a data set of known size; got an IterableDataset; hint: shuffle in its stream, "
                "drawing from a data::Generator of the context's seed and epoch");
  core_->options = options;
  core_->iterable = std::move(dataset);
}

DataLoader::Core& DataLoader::core() const {
  if (core_ == nullptr) throw Error("data", "this data loader is empty: it was given no data set");
  return *core_;
}

const DataLoaderOptions& DataLoader::options() const { return core().options; }
const std::shared_ptr<const data::Dataset>& DataLoader::dataset() const { return core().dataset; }
const std::shared_ptr<const data::Sampler>& DataLoader::sampler() const { return core().sampler; }

std::optional<int64_t> DataLoader::num_examples() const {
  if (core().dataset == nullptr) return std::nullopt;
  return core().dataset->size();
}

std::optional<int64_t> DataLoader::num_batches(int64_t world_size, int64_t first_example) const {
  if (core().dataset == nullptr) return std::nullopt;
  if (const auto* batched = core().batch_sampler()) return batched->num_batches(core().checked_size());
  return core().plan(core().sampler->length(core().checked_size()), 0, world_size, first_example).num_batches();
}

int64_t DataLoader::batch_size(int64_t world_size) const { return core().batch_size(world_size); }
bool DataLoader::has_batch_sampler() const { return core().batch_sampler() != nullptr; }

DataLoader DataLoader::with_options(const DataLoaderOptions& options) const {
  if (core().iterable != nullptr) return DataLoader(core().iterable, options);
  return DataLoader(core().dataset, options, core().sampler_was_given ? core().sampler : nullptr);
}

DataLoader DataLoader::with_batch_size(int64_t batch_size) const {
  core().require_one_batch_size();
  DataLoaderOptions options = core().options;
  options.batch_size = batch_size;
  options.global_batch_size.reset();
  return with_options(options);
}

DataLoader DataLoader::with_sampler(std::shared_ptr<const data::Sampler> sampler) const {
  if (core().iterable != nullptr)
    throw Error("data", "a sampler needs a data set of known size; got an IterableDataset");
  auto options = core().options;
  options.shuffle = options.shuffle && sampler == nullptr;
  return DataLoader(core().dataset, options, std::move(sampler));
}

DataLoader::Pass DataLoader::pass(const DataLoaderPosition& position) const {
  check_position(position);
  Core& shared = core();
  std::lock_guard lock(shared.mutex);
  if (auto previous = shared.running.lock()) previous->stop();
  return Pass(shared.dataset != nullptr ? shared.sized_pass(position) : shared.unsized_pass(position));
}

}  // namespace levin
