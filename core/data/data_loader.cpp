#include <levin/core/data/data_loader.h>

#include <levin/core/accelerators/accelerator_registry.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/core/data/batch_plan.h>
#include <levin/core/data/batch_sampler.h>
#include <levin/core/data/combined_plan.h>
#include <levin/core/data/combined_source.h>
#include <levin/core/data/data_notes.h>
#include <levin/core/data/fetch_scope.h>
#include <levin/core/data/inline_source.h>
#include <levin/core/data/loader_pass.h>
#include <levin/core/data/pinning_reader.h>
#include <levin/core/data/prefetch_source.h>
#include <levin/core/data/queue.h>
#include <levin/core/data/sized_reader.h>
#include <levin/core/data/stream_reader.h>
#include <levin/core/data/worker_pool.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

namespace levin {

namespace {

void check_options(const DataLoaderOptions& options) {
  schema_of<DataLoaderOptions>().validate(options, "data loader");
  if (options.timeout > 0 && options.num_workers == 0)
    throw Error("data", fmt::format("a data loader's timeout is {} s, but nobody waits where num_workers is 0: the "
                                    "thread that trains fetches; valid: timeout: 0, or at least 1 worker",
                                    options.timeout));
  if (!options.lookahead && options.num_workers > 0)
    throw Error("data", fmt::format("a data loader with lookahead: false fetches each batch when it is needed, which "
                                    "workers cannot; got num_workers {}; valid: 0",
                                    options.num_workers));
}

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
             "examples in a batch of all ranks together; replaces batch_size")
      .at_least(1)
      .at_most(O::kMaxBatchSize);
  schema.field("timeout", &O::timeout, "longest time of a batch of the workers (s); 0: no limit")
      .at_least(0)
      .at_most(O::kMaxTimeout);
  schema.field("persistent_workers", &O::persistent_workers, "keep the workers from one pass to the next");
  schema.field("on_error", &O::on_error, "for an unreadable example; raise: an error; skip: take the next one",
               {{"raise", data::OnError::kRaise}, {"skip", data::OnError::kSkip}});
  schema.field(
      "lookahead", &O::lookahead,
      "fetch the next batch before the step; false: after it, for data that use the module's weights (num_workers 0)");
}

namespace {

/// A pass as a source.
class PassSource : public data::BatchSource {
 public:
  explicit PassSource(DataLoader::Pass pass) : pass_(std::move(pass)) {}
  std::optional<Batch> next(std::chrono::nanoseconds& waited) override {
    const auto before = pass_.waited();
    auto batch = pass_.next();
    waited += pass_.waited() - before;
    return batch;
  }
  void stop() override {}

 private:
  DataLoader::Pass pass_;
};

DataLoader::Pass::Share share_of(const data::BatchPlan& plan, int64_t batch) {
  const int64_t all = plan.global_count(batch);
  if (all == 0) return {};
  return {.own = plan.own_count(batch), .all = all};
}

void check_parts(const std::vector<DataLoader::Part>& parts, CombinedMode mode) {
  if (parts.empty()) throw Error("data", "a combined loader was given no parts");
  std::set<std::string> names;
  for (const auto& [name, loader] : parts) {
    if (name.empty() || name.find('.') != std::string::npos || !names.insert(name).second)
      throw Error("data", fmt::format("'{}' cannot name a part of a combined loader; valid: names without a dot, each "
                                      "once",
                                      name));
    if (!loader) throw Error("data", fmt::format("the part '{}' of a combined loader is empty: it has no data", name));
    if (!loader.parts().empty())
      throw Error("data", fmt::format("the part '{}' of a combined loader is a combined loader itself", name));
    if (loader.has_batch_sampler())
      throw Error("data", fmt::format("the part '{}' of a combined loader has batches of its sampler's own; valid: a "
                                      "sampler that says the order alone, with batch_size",
                                      name));
    if (!loader.num_examples() && (mode == CombinedMode::kMaxSizeCycle || mode == CombinedMode::kSequential))
      throw Error("data", fmt::format("the part '{}' of a combined loader has no size, so that nobody knows where it "
                                      "begins again or ends; valid modes: min_size, max_size",
                                      name));
  }
}

}  // namespace

struct DataLoader::Core {
  DataLoaderOptions options;
  std::vector<Part> parts;  ///< of a combined loader, which has nothing of what follows but `running`
  CombinedMode mode = CombinedMode::kMaxSizeCycle;
  std::shared_ptr<const data::Dataset> dataset;
  std::shared_ptr<const data::Sampler> sampler;
  bool sampler_was_given = false;  ///< else it follows options.shuffle
  std::shared_ptr<const data::IterableDataset> iterable;

  Mutex mutex;  ///< passes may be started from several threads
  std::shared_ptr<data::WorkerPool> pool LEVIN_GUARDED_BY(mutex);
  std::weak_ptr<data::BatchSource> running LEVIN_GUARDED_BY(mutex);

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

  std::shared_ptr<data::WorkerPool> workers() LEVIN_REQUIRES(mutex) {
    if (!options.persistent_workers) return data::WorkerPool::make(options.num_workers);
    if (pool == nullptr || !pool->is_alive()) pool = data::WorkerPool::make(options.num_workers);
    return pool;
  }

  std::shared_ptr<data::BatchSource> make_source(std::vector<std::unique_ptr<data::BatchReader>> readers, int64_t turn)
      LEVIN_REQUIRES(mutex) {
    if (options.pin_memory && AcceleratorRegistry::instance().uses_pinned_memory()) {
      for (auto& reader : readers) reader = std::make_unique<data::PinningReader>(std::move(reader));
    }
    if (options.num_workers == 0) return std::make_shared<data::InlineSource>(std::move(readers.front()));
    return std::make_shared<data::PrefetchSource>(
        workers(), std::move(readers),
        data::PrefetchSource::Options{.depth = options.prefetch_factor,
                                      .turn = turn,
                                      .timeout = data::PrefetchSource::timeout_of(options.timeout)});
  }

  /// What takes note of the examples that a pass skips; nullptr where they are errors.
  std::shared_ptr<data::SkippedExamples> skipped_examples(int64_t epoch, int64_t size) const {
    if (options.on_error == data::OnError::kRaise) return nullptr;
    return std::make_shared<data::SkippedExamples>(epoch, size);
  }

  static Pass::State::Lengths lengths_of(const data::BatchPlan& plan) {
    return {.num_batches = plan.num_batches(), .share = [plan](int64_t batch) { return share_of(plan, batch); }};
  }

  /// A part's division into batches; nothing where it is unsized.
  std::optional<data::BatchPlan> plan_of_rank(int64_t rank, int64_t world_size) const {
    if (dataset == nullptr) return std::nullopt;
    return plan(sampler->length(checked_size()), rank, world_size, 0);
  }

  /// Which batches of the parts make a combined one.
  data::CombinedPlan combined_plan(int64_t world_size) const {
    data::CombinedPlan combined{.mode = mode};
    for (const auto& [name, loader] : parts) {
      combined.lengths.push_back(loader.num_batches(world_size));
      if (mode == CombinedMode::kMaxSizeCycle && combined.lengths.back() == 0)
        throw Error("data", fmt::format("the part '{}' of a combined loader gives no batch, so that it cannot begin "
                                        "again; hint: a smaller batch_size, or drop_last: false",
                                        name));
    }
    return combined;
  }

  std::unique_ptr<Pass::State> combined_pass(const DataLoaderPosition& position) LEVIN_REQUIRES(mutex) {
    const data::CombinedPlan combined = combined_plan(position.world_size);
    std::vector<data::CombinedSource::Part> sources;
    std::vector<std::optional<data::BatchPlan>> plans;
    for (size_t part = 0; part < parts.size(); ++part) {
      const auto& [name, loader] = parts[part];
      plans.push_back(loader.core().plan_of_rank(position.rank, position.world_size));
      sources.push_back({name, [loader = loader, position, passes = combined.passes(part)](
                                   data::CombinedPlan::Place place, bool of_first_rank) {
                           DataLoaderPosition own = position;
                           own.epoch = position.epoch * passes + place.pass;
                           own.batch = place.batch;
                           if (of_first_rank) own.rank = 0;
                           return std::make_unique<PassSource>(
                               (of_first_rank ? loader.with_num_workers(0) : loader).pass(own));
                         }});
    }
    std::optional<Pass::State::Lengths> lengths;
    if (const auto num_batches = combined.num_batches())
      lengths = {.num_batches = *num_batches, .share = [combined, plans](int64_t batch) {
                   Pass::Share sum;
                   for (size_t part = 0; part < plans.size(); ++part) {
                     const auto place = combined.place(part, batch);
                     if (!place) continue;
                     const Pass::Share share = share_of(*plans[part], place->batch);
                     sum.own += share.own;
                     sum.all += share.all;
                   }
                   return sum;
                 }};
    if (lengths) warn_of_uneven_parts(combined, plans);
    auto source = std::make_shared<data::CombinedSource>(combined, std::move(sources), position.batch);
    running = source;
    return std::make_unique<Pass::State>(std::move(source), position.batch, std::move(lengths));
  }

  /// A batch has one weight on each rank, which is that of all its parts where the ranks share these alike.
  void warn_of_uneven_parts(const data::CombinedPlan& combined,
                            const std::vector<std::optional<data::BatchPlan>>& plans) const {
    if (mode == CombinedMode::kSequential) return;  // one part at a time
    const int64_t ranks = plans.front()->world_size;
    const auto share_alike = [&](data::BatchPlan one, int64_t batch_of_one, data::BatchPlan other,
                                 int64_t batch_of_other) {
      for (one.rank = other.rank = 0; one.rank < ranks; other.rank = ++one.rank) {
        const Pass::Share of_one = share_of(one, batch_of_one);
        const Pass::Share of_other = share_of(other, batch_of_other);
        if (of_one.own * of_other.all != of_other.own * of_one.all) return false;
      }
      return true;
    };
    for (size_t uneven = 0; uneven < plans.size(); ++uneven) {
      const int64_t length = *combined.lengths[uneven];
      if (length == 0 || plans[uneven]->global_count(length - 1) % ranks == 0) continue;
      // Only the last batch of a part may be uneven.
      for (int64_t batch = length - 1; batch < *combined.num_batches(); batch += length) {
        const auto place = combined.place(uneven, batch);
        if (!place) break;
        for (size_t part = 0; part < plans.size(); ++part) {
          const auto other = combined.place(part, batch);
          if (!other || share_alike(*plans[uneven], place->batch, *plans[part], other->batch)) continue;
          log::rank_zero_warning_once(fmt::format(
              "batch {} of the combined loader has {} of '{}' and {} of '{}', which {} ranks cannot share alike: the "
              "mean over the ranks is not quite that over the batch; hint: drop_last: true",
              batch, counted(plans[uneven]->global_count(place->batch), "example"), parts[uneven].first,
              counted(plans[part]->global_count(other->batch), "example"), parts[part].first, ranks));
          return;
        }
      }
    }
  }

  std::unique_ptr<Pass::State> sized_pass(const DataLoaderPosition& position) LEVIN_REQUIRES(mutex) {
    auto shared = std::make_shared<data::SizedPass>();
    shared->dataset = dataset;
    const int64_t size = checked_size();
    shared->seed = position.seed;
    shared->epoch = position.epoch;
    shared->skipped = skipped_examples(position.epoch, size);
    data::set_order(*shared, *sampler,
                    plan(/*num_indices=*/0, position.rank, position.world_size, position.first_example));

    const int64_t count = std::max<int64_t>(options.num_workers, 1);
    std::vector<std::unique_ptr<data::BatchReader>> readers;
    for (int64_t i = 0; i < count; ++i)
      readers.push_back(std::make_unique<data::SizedReader>(shared, position.batch + i, count));
    auto source = make_source(std::move(readers), 0);
    running = source;
    return std::make_unique<Pass::State>(std::move(source), position.batch, lengths_of(shared->plan), shared->skipped);
  }

  std::unique_ptr<Pass::State> unsized_pass(const DataLoaderPosition& position) LEVIN_REQUIRES(mutex) {
    const int64_t count = std::max<int64_t>(options.num_workers, 1);
    const auto skipped = skipped_examples(position.epoch, -1);
    std::vector<std::unique_ptr<data::StreamReader>> streams;
    for (int64_t i = 0; i < count; ++i) {
      const data::StreamContext context{.seed = position.seed,
                                        .epoch = position.epoch,
                                        .reader = position.rank * count + i,
                                        .num_readers = position.world_size * count};
      streams.push_back(std::make_unique<data::StreamReader>(iterable, context, batch_size(position.world_size),
                                                             options.drop_last, skipped));
    }
    data::DealtReaders dealt = [&] {
      data::FetchScope scope;
      return data::deal_from(std::move(streams), position.batch);
    }();
    std::vector<std::unique_ptr<data::BatchReader>> readers;
    for (auto& reader : dealt.readers) readers.push_back(std::move(reader));
    auto source = make_source(std::move(readers), dealt.turn);
    running = source;
    return std::make_unique<Pass::State>(std::move(source), position.batch, std::nullopt, skipped);
  }
};

DataLoader::DataLoader(std::shared_ptr<const data::Dataset> dataset, const DataLoaderOptions& options,
                       std::shared_ptr<const data::Sampler> sampler)
    : core_(std::make_shared<Core>()) {
  if (dataset == nullptr) throw Error("data", "a data loader was given no data set (a null pointer)");
  check_options(options);
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
  check_options(options);
  if (options.shuffle)
    throw Error("data",
                "shuffle needs a data set of known size; got an IterableDataset; hint: shuffle in its stream, "
                "drawing from a data::Generator of the context's seed and epoch");
  if (options.num_workers > 0 && dynamic_cast<const data::Queue*>(dataset.get()) != nullptr)
    throw Error("data",
                fmt::format("a queue is read by the thread that trains; got num_workers {}; valid: 0; hint: its "
                            "writers are ahead already",
                            options.num_workers));
  core_->options = options;
  core_->iterable = std::move(dataset);
}

DataLoader::Core& DataLoader::core() const {
  if (core_ == nullptr) throw Error("data", "this data loader is empty: it was given no data set");
  return *core_;
}

/// `wanted`: what a combined loader has not, in the message.
DataLoader::Core& DataLoader::core_of_one(const char* wanted) const {
  if (!core().parts.empty())
    throw Error("data", fmt::format("a combined loader has no {} of its own; hint: give it to its parts", wanted));
  return core();
}

DataLoader DataLoader::combined(std::vector<Part> parts, CombinedMode mode) {
  check_parts(parts, mode);
  DataLoader loader;
  loader.core_ = std::make_shared<Core>();
  loader.core_->options = parts.front().second.options();
  loader.core_->parts = std::move(parts);
  loader.core_->mode = mode;
  return loader;
}

template <class Change>
DataLoader DataLoader::with_each_part(const Change& change) const {
  std::vector<Part> changed;
  for (const auto& [name, loader] : core().parts) changed.emplace_back(name, change(loader));
  return combined(std::move(changed), core().mode);
}

const std::vector<DataLoader::Part>& DataLoader::parts() const { return core().parts; }
const DataLoaderOptions& DataLoader::options() const { return core().options; }
const std::shared_ptr<const data::Dataset>& DataLoader::dataset() const { return core().dataset; }
const std::shared_ptr<const data::Sampler>& DataLoader::sampler() const { return core().sampler; }
const std::shared_ptr<const data::IterableDataset>& DataLoader::iterable() const { return core().iterable; }

std::optional<int64_t> DataLoader::num_examples() const {
  if (core().parts.empty()) return core().dataset == nullptr ? std::nullopt : std::optional(core().dataset->size());
  int64_t sum = 0;
  for (const auto& [name, loader] : core().parts) {
    const auto examples = loader.num_examples();
    if (!examples) return std::nullopt;
    sum += *examples;
  }
  return sum;
}

std::optional<int64_t> DataLoader::num_batches(int64_t world_size, int64_t first_example) const {
  if (!core().parts.empty()) return core().combined_plan(world_size).num_batches();
  if (core().dataset == nullptr) return std::nullopt;
  if (const auto* batched = core().batch_sampler()) return batched->num_batches(core().checked_size());
  return core().plan(core().sampler->length(core().checked_size()), 0, world_size, first_example).num_batches();
}

int64_t DataLoader::batch_size(int64_t world_size) const {
  if (core().parts.empty()) return core().batch_size(world_size);
  int64_t sum = 0;
  for (const auto& [name, loader] : core().parts) sum += loader.batch_size(world_size);
  return sum;
}

DataLoader DataLoader::copy() const {
  if (!core().parts.empty()) return with_each_part([](const DataLoader& part) { return part.copy(); });
  return with_options(core().options);
}

DataLoader DataLoader::in_order() const {
  if (!core().parts.empty()) return with_each_part([](const DataLoader& part) { return part.in_order(); });
  DataLoaderOptions options = core().options;
  options.shuffle = false;
  if (core().iterable != nullptr) return DataLoader(core().iterable, options);
  return DataLoader(core().dataset, options, std::make_shared<data::SequentialSampler>());
}

DataLoader DataLoader::with_num_workers(int64_t num_workers) const {
  if (!core().parts.empty())
    return with_each_part([num_workers](const DataLoader& part) { return part.with_num_workers(num_workers); });
  DataLoaderOptions options = core().options;
  options.num_workers = num_workers;
  if (num_workers == 0) options.timeout = 0;
  if (num_workers > 0) options.lookahead = true;
  return with_options(options);
}

bool DataLoader::looks_ahead() const {
  if (core().parts.empty()) return core().options.lookahead;
  return std::all_of(core().parts.begin(), core().parts.end(),
                     [](const Part& part) { return part.second.looks_ahead(); });
}

bool DataLoader::has_batch_sampler() const { return core().batch_sampler() != nullptr; }

DataLoader DataLoader::with_options(const DataLoaderOptions& options) const {
  const Core& one = core_of_one("options");
  if (one.iterable != nullptr) return DataLoader(one.iterable, options);
  return DataLoader(one.dataset, options, one.sampler_was_given ? one.sampler : nullptr);
}

DataLoader DataLoader::with_batch_size(int64_t batch_size) const {
  const Core& one = core();
  if (!one.parts.empty()) {
    if (one.mode == CombinedMode::kSequential)
      throw Error("data",
                  "a combined loader of the mode sequential has batches of one part at a time, each with a size of its "
                  "own; hint: search for or plan a batch size with one part as the data");
    // Rounding the ends, not the sizes, keeps the sum.
    const auto whole = static_cast<double>(this->batch_size(1));
    int64_t before = 0;
    int64_t end = 0;
    return with_each_part([&](const DataLoader& part) {
      before += part.batch_size(1);
      const int64_t begin = end;
      end = std::llround(static_cast<double>(before) / whole * static_cast<double>(batch_size));
      return part.with_batch_size(std::max<int64_t>(end - begin, 1));
    });
  }
  one.require_one_batch_size();
  DataLoaderOptions options = one.options;
  options.batch_size = batch_size;
  options.global_batch_size.reset();
  return with_options(options);
}

DataLoader DataLoader::full_batches() const {
  if (!core().parts.empty()) return with_each_part([](const DataLoader& part) { return part.full_batches(); });
  DataLoaderOptions options = core().options;
  options.drop_last = true;
  return with_options(options);
}

DataLoader DataLoader::with_sampler(std::shared_ptr<const data::Sampler> sampler) const {
  const Core& one = core_of_one("sampler");
  if (one.iterable != nullptr) throw Error("data", "a sampler needs a data set of known size; got an IterableDataset");
  auto options = one.options;
  options.shuffle = options.shuffle && sampler == nullptr;
  return DataLoader(one.dataset, options, std::move(sampler));
}

DataLoader::Pass DataLoader::pass(const DataLoaderPosition& position) const {
  check_position(position);
  Core& shared = core();
  const MutexLock lock(shared.mutex);
  if (auto previous = shared.running.lock()) previous->stop();
  if (!shared.parts.empty()) return Pass(shared.combined_pass(position));
  return Pass(shared.dataset != nullptr ? shared.sized_pass(position) : shared.unsized_pass(position));
}

}  // namespace levin
