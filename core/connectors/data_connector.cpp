#include <levin/core/connectors/data_connector.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/seed.h>
#include <levin/core/base/type_name.h>
#include <levin/core/connectors/error_context.h>
#include <levin/core/connectors/missing_data_hint.h>
#include <levin/core/data/batch_sampler.h>
#include <levin/core/data/blend_sampler.h>
#include <levin/core/data/length_grouped_sampler.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/independent_steps.h>
#include <levin/core/interfaces/module.h>
#include <levin/core/interfaces/overridden.h>
#include <levin/core/interfaces/strategy.h>
#include <levin/core/precision/precision.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <typeinfo>
#include <utility>
#include <variant>

namespace levin {
namespace {

/// The batches of one epoch in every one.
class RepeatedBatches final : public data::BatchSampler {
 public:
  explicit RepeatedBatches(std::shared_ptr<const data::Sampler> sampler) : sampler_(std::move(sampler)) {}
  Batches batches(int64_t dataset_size, uint64_t seed, int64_t /*epoch*/) const override {
    return dynamic_cast<const data::BatchSampler&>(*sampler_).batches(dataset_size, seed, 0);
  }

 private:
  std::shared_ptr<const data::Sampler> sampler_;
};

/// The loader with the same batches, in the same order, in every epoch.
DataLoader same_batches(const DataLoader& loader) {
  if (!loader.has_batch_sampler()) return loader.in_order();
  DataLoaderOptions options = loader.options();
  options.shuffle = false;
  return loader.with_options(options).with_sampler(std::make_shared<RepeatedBatches>(loader.sampler()));
}

/// The same on every machine.
uint64_t hash_of_lengths(const std::vector<int64_t>& lengths) {
  uint64_t hash = 0;
  for (const int64_t length : lengths) hash = mix_seed(hash, static_cast<uint64_t>(length), 0);
  return hash;
}

/// Ranks that are threads may share a data module, whose hooks are called by one rank at a time.
Mutex& shared_data_mutex() {
  static Mutex mutex;
  return mutex;
}

}  // namespace

DataConnector::DataConnector(const ResolvedOptions& options, TrainerState& state, Tracer& tracer)
    : options_(options), state_(state), tracer_(tracer), strategy_(*options.strategy) {}

// ---- A call's data

void DataConnector::begin_call(std::shared_ptr<DataModule> data_module, const StageLoaders& given) {
  data_module_ = std::move(data_module);
  given_ = given;
}

void DataConnector::set_up() {
  const Activity activity(tracer_, "set_up_data");
  Module& module = *state_.module;
  if (strategy_.environment().local_rank() == 0) {
    if (data_module_ != nullptr)
      call_user(state_, "prepare_data", *data_module_, [this] { data_module_->prepare_data(); });
    call_user(state_, "prepare_data", module, [&] { module.prepare_data(); });
  }
  strategy_.collective().barrier();
  set_up_data_module();
  strategy_.collective().barrier();
}

void DataConnector::set_up_data_module() {
  if (data_module_ == nullptr || shares_data_module_) return;
  call_user(state_, "setup", *data_module_, [this] { data_module_->setup(state_.stage); });
  set_up_for_ = state_.stage;
}

void DataConnector::tear_down() {
  if (const auto stage = std::exchange(set_up_for_, std::nullopt))
    call_user(state_, "teardown", *data_module_, [&] { data_module_->teardown(*stage); });
}

void DataConnector::tear_down_after_failure() {
  log_further_error("teardown", [this] { tear_down(); });
}

DataLoader DataConnector::train_loader() const {
  const MutexLock lock(shared_data_mutex());
  Module& module = *state_.module;
  DataLoader loader = given_.train;
  if (!loader && data_module_ != nullptr)
    loader = call_user(state_, "train_dataloader", *data_module_, [this] { return data_module_->train_dataloader(); });
  if (!loader) loader = call_user(state_, "train_dataloader", module, [&] { return module.train_dataloader(); });
  if (!loader) return loader;
  if (train_batch_size_) return loader.with_batch_size(*train_batch_size_);
  return strategy_.ranks().are_threads() ? loader.copy() : loader;
}

DataLoaders DataConnector::evaluation_loaders(const char* name, const DataLoaders& given,
                                              DataLoaders (DataModule::*of_data)(),
                                              DataLoaders (Module::*of_module)()) const {
  const MutexLock lock(shared_data_mutex());
  Module& module = *state_.module;
  DataLoaders loaders = given;
  if (loaders.empty() && data_module_ != nullptr)
    loaders = call_user(state_, name, *data_module_, [&] { return (data_module_.get()->*of_data)(); });
  if (loaders.empty()) loaders = call_user(state_, name, module, [&] { return (module.*of_module)(); });
  for (const auto& loader : loaders)
    if (!loader.parts().empty())
      throw Error("data", fmt::format("{} gave a combined loader, which are for training; hint: a list of loaders is "
                                      "evaluated one behind the other",
                                      name));
  if (strategy_.ranks().are_threads())
    for (auto& loader : loaders) loader = loader.copy();
  return loaders;
}

void DataConnector::select_loaders() {
  const Activity activity(tracer_, "select_loaders");
  loaders_ = {};
  const auto require = [&](bool there, const char* hook) {
    if (!there)
      throw Error("trainer",
                  fmt::format("{} needs data; got none; valid: loaders given to the call, or {}() of a data module "
                              "or of the module{}",
                              to_string(state_.stage), hook, missing_data_hint(data_module_.get(), state_.stage)));
  };
  const auto validation = [this] {
    return evaluation_loaders("val_dataloader", given_.val, &DataModule::val_dataloader, &Module::val_dataloader);
  };
  switch (state_.stage) {
    case Stage::kFit: {
      DataLoader& train = loaders_.train = train_loader();
      require(static_cast<bool>(train), "train_dataloader");
      if (options_.overfit) train = same_batches(train);
      if (find_independent_steps(strategy_) != nullptr && !train.parts().empty())
        throw ConfigError(
            fmt::format("trainer.strategy '{}' has ranks that take batches of one loader, each when it is "
                        "ready for one; got a combined loader",
                        strategy_.name()));
      // Of one rank each, fetched when a rank is about to need it.
      if (find_independent_steps(strategy_) != nullptr) train = train.with_options(for_independent_steps(train));
      loaders_.val = validation();
      if (const Module& module = *state_.module; !loaders_.val.empty() && !overrides_validation_step(module)) {
        if (!options_.limit_val.is_zero())
          log::rank_zero_warning(fmt::format(
              "there are validation data, but {} does not override validation_step(), so fit runs no validation",
              short_class_name(typeid(module))));
        loaders_.val.clear();
      }
      // One loader for both: a validation inside of an epoch would end the pass under way.
      for (auto& loader : loaders_.val)
        if (train.dataset() == nullptr || loader.dataset() == train.dataset()) loader = loader.copy();
      break;
    }
    case Stage::kValidate:
      loaders_.val = validation();
      require(!loaders_.val.empty(), "val_dataloader");
      break;
    case Stage::kTest:
      loaders_.test =
          evaluation_loaders("test_dataloader", given_.test, &DataModule::test_dataloader, &Module::test_dataloader);
      require(!loaders_.test.empty(), "test_dataloader");
      break;
    case Stage::kPredict:
      loaders_.predict = evaluation_loaders("predict_dataloader", given_.predict, &DataModule::predict_dataloader,
                                            &Module::predict_dataloader);
      require(!loaders_.predict.empty(), "predict_dataloader");
      break;
  }
}

bool DataConnector::validates() const {
  return std::any_of(validation_batches_.begin(), validation_batches_.end(), [](int64_t count) { return count != 0; });
}

void DataConnector::set_validation_loaders(const DataLoaders& loaders) {
  given_.val = loaders;
  loaders_.val = evaluation_loaders("val_dataloader", given_.val, &DataModule::val_dataloader, &Module::val_dataloader);
  if (loaders_.val.empty())
    throw Error("engine",
                "validate was given no loader, and the module has no val_dataloader(); hint: validate({loader})");
  // A pass of the program's over the same loader goes on.
  const DataLoader& train = loaders_.train;
  for (auto& loader : loaders_.val)
    if (!train || loader.dataset() == train.dataset()) loader = loader.copy();
  validation_batches_ = limited_batches(loaders_.val, options_.limit_val, "limit_val_batches");
}

DataLoaderPosition DataConnector::position_in(const DataLoader& train) {
  const FitProgress before = state_.progress;
  loaders_.train = train;
  try {
    resume_batches();
  } catch (...) {
    state_.progress = before;
    loaders_.train = {};
    throw;
  }
  state_.progress.global_batch_size = global_batch_size();
  return train_position();
}

// ---- Order and number of batches

void DataConnector::begin_fit() {
  waited_ = {};
  train_batch_size_.reset();
  seed_ = global_seed();
}

void DataConnector::count_batches() {
  const char* option = options_.overfit ? "overfit_batches" : "limit_train_batches";
  const int64_t batches =
      options_.limit_train.resolve(loaders_.train.num_batches(train_ranks(), state_.progress.first_example), option);
  train_batches_ = batches < 0 ? std::nullopt : std::optional<int64_t>(batches);
  state_.progress.global_batch_size = global_batch_size();
  state_.progress.order = train_order();
  validation_batches_ =
      limited_batches(loaders_.val, options_.limit_val, options_.overfit ? "overfit_batches" : "limit_val_batches");

  validation_interval_.reset();
  whole_epoch_batches_ = train_batches_;
  if (state_.progress.first_example > 0 && train_batches_)
    whole_epoch_batches_ = options_.limit_train.resolve(loaders_.train.num_batches(train_ranks()), option);
  const auto& interval = options_.given.val_check_interval.value();
  if (const auto* count = std::get_if<int64_t>(&interval)) {
    validation_interval_ = *count;
    if (options_.given.check_val_every_n_epoch && whole_epoch_batches_ && *count > *whole_epoch_batches_ &&
        !loaders_.val.empty() && options_.given.fast_dev_run.batches() == 0)
      throw ConfigError(
          fmt::format("trainer.val_check_interval is {} batches, but an epoch has {}; valid: 1 to {}; hint: "
                      "check_val_every_n_epoch: null lets it count across epochs",
                      *count, *whole_epoch_batches_, *whole_epoch_batches_));
  } else if (const auto* fraction = std::get_if<double>(&interval); fraction != nullptr && *fraction < 1.0) {
    if (!whole_epoch_batches_)
      throw ConfigError(
          fmt::format("trainer.val_check_interval is {}, a fraction of an epoch whose length is not known; "
                      "hint: give a number of batches",
                      *fraction));
    validation_interval_ =
        std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(*whole_epoch_batches_) * *fraction));
  }
}

void DataConnector::require_training_data() const {
  const DataLoader& loader = loaders_.train;
  if (options_.limit_train.is_zero() || loader.num_batches(train_ranks()) != 0) return;
  const int64_t examples = loader.num_examples().value_or(0);
  if (examples == 0)
    throw Error("data", "the training data set is empty; hint: limit_train_batches: 0 trains nothing on purpose");
  if (loader.has_batch_sampler()) throw Error("data", "the batch sampler of the training loader gives no batch");
  throw Error(
      "data",
      fmt::format("the training loader gives no batch: {} of the data set, batches of {} on each of {}, and "
                  "drop_last leaves out what does not fill one; hint: a smaller batch_size, or drop_last: false",
                  counted(examples, "example"), loader.batch_size(train_ranks()), counted(train_ranks(), "rank")));
}

int64_t DataConnector::global_batch_size() const {
  return !loaders_.train || loaders_.train.has_batch_sampler()
             ? 0
             : loaders_.train.batch_size(train_ranks()) * train_ranks();
}

std::string DataConnector::train_order() const {
  const std::string order = order_of(loaders_.train);
  const bool is_shared = options_.given.use_distributed_sampler || strategy_.data_parallel_rank().size == 1;
  return is_shared || order.empty() ? order : "each rank by itself: " + order;
}

std::string DataConnector::order_of(const DataLoader& train) const {
  if (!train.parts().empty()) {
    std::string orders;
    for (const auto& [name, part] : train.parts())
      orders += fmt::format("{}{} ({})", orders.empty() ? "" : ", ", name, order_of(part));
    return orders;
  }
  if (train.dataset() == nullptr) {
    const std::string order = train.iterable() != nullptr ? train.iterable()->order() : "";
    return fmt::format(
        "{}{}{} with {}, batches of {}", order, order.empty() ? "" : "; ", counted(train_ranks(), "rank"),
        counted(std::max<int64_t>(train.options().num_workers, 1), "worker"), train.batch_size(train_ranks()));
  }
  if (const auto* sampler = dynamic_cast<const data::LengthGroupedSampler*>(train.sampler().get()))
    return fmt::format("length_grouped of {}, window of {}, {} of lengths {:x}",
                       counted(sampler->options().group_size, "example"), sampler->options().window,
                       counted(std::ssize(sampler->lengths()), "example"), hash_of_lengths(sampler->lengths()));
  if (const auto* blend = dynamic_cast<const data::BlendSampler*>(train.sampler().get())) return blend->description();
  if (train.has_batch_sampler())
    return counted(train.num_examples().value_or(0), "example") + " in batches of a sampler";
  const data::Sampler* const sampler = train.sampler().get();
  const char* const way = dynamic_cast<const data::RandomSampler*>(sampler) != nullptr ? ", shuffled"
                          : dynamic_cast<const data::SequentialSampler*>(sampler) != nullptr
                              ? ""
                              : " by a sampler of its own";
  return counted(train.num_examples().value_or(0), "example") + way;
}

void DataConnector::reload_for_resume() {
  const int64_t every = options_.given.reload_dataloaders_every_n_epochs;
  int64_t& epoch = state_.progress.epoch;
  if (every == 0 || epoch < every || !loaders_.train) return;
  const int64_t present = std::exchange(epoch, epoch - epoch % every);
  select_loaders();
  epoch = present;
}

void DataConnector::resume_batches() {
  if (!loaders_.train) return;  // the caller of the steps has the data
  FitProgress& progress = state_.progress;
  const std::string saved_order = std::exchange(progress.order, train_order());
  // Earlier versions said less of it.
  // Of loaders that ranks read by themselves it is rank 0's.
  const bool is_another_ranks = !options_.given.use_distributed_sampler && strategy_.rank() > 0;
  const bool is_same_order = is_another_ranks || saved_order.empty() || saved_order == progress.order ||
                             progress.order.starts_with(saved_order + ", ");
  if (progress.epoch_samples > 0 && !progress.last_batch_done && progress.phase != FitPhase::kEpochDone &&
      !is_same_order && !loaders_.train.has_batch_sampler())
    throw Error(
        "data",
        fmt::format("the checkpoint was saved inside of epoch {}, after {}, whose order was that of {}; got {}; "
                    "hint: train with the former ones, or resume from a checkpoint of the end of an epoch",
                    progress.epoch, counted(progress.epoch_samples, "example"), saved_order,
                    progress.order.empty() ? "another sampler" : progress.order));
  const int64_t size = global_batch_size();
  const bool is_inside = progress.batch > 0 && !progress.last_batch_done && progress.phase != FitPhase::kEpochDone;
  // Of a loader of each rank's own, the examples that all have seen say nothing of its place.
  const bool is_counted = options_.given.use_distributed_sampler || !is_inside;
  if (size > 0 && progress.global_batch_size > 0 && (is_counted || size == progress.global_batch_size)) {
    if (size == progress.global_batch_size) return;
    if (!loaders_.train.parts().empty() && progress.phase != FitPhase::kEpochDone && progress.epoch_samples > 0)
      throw Error(
          "checkpoint",
          fmt::format("a combined loader cannot go on inside of an epoch with other batches: the batches of its "
                      "parts have {} examples together over all ranks, and had {}; hint: global_batch_size in "
                      "each part, which keeps them with any number of ranks",
                      size, progress.global_batch_size));
    progress.resume_with_batches_of(size);
    return;
  }
  if (!is_inside) return;
  if (size == 0 && progress.global_batch_size == 0) {
    // Of whole loaders on each rank, the examples seen say nothing of the batches.
    if (!options_.given.use_distributed_sampler) return;
    const auto batches = dynamic_cast<const data::BatchSampler&>(*loaders_.train.sampler())
                             .batches(loaders_.train.num_examples().value_or(0), seed_, progress.epoch);
    const auto done = static_cast<size_t>(progress.batch);
    if (is_same_order && done <= batches.ends.size() && batches.ends[done - 1] == progress.epoch_samples) return;
  }
  throw Error("data",
              fmt::format("the checkpoint was saved inside of epoch {}, after {}, with batches of other sizes than the "
                          "training loader has now, and a place among them is no place among these; hint: train with "
                          "the former batches, or resume from a checkpoint of the end of an epoch",
                          progress.epoch, counted(progress.epoch_samples, "example")));
}

std::vector<int64_t> DataConnector::limited_batches(const DataLoaders& loaders, const BatchLimit& limit,
                                                    const char* option) const {
  std::vector<int64_t> batches;
  for (const auto& loader : loaders)
    batches.push_back(limit.resolve(loader.num_batches(strategy_.data_parallel_rank().size), option));
  return batches;
}

std::vector<int64_t> DataConnector::evaluation_batches() const {
  switch (state_.stage) {
    case Stage::kTest:
      return limited_batches(loaders_.test, options_.limit_test, "limit_test_batches");
    case Stage::kPredict:
      return limited_batches(loaders_.predict, options_.limit_predict, "limit_predict_batches");
    default:
      return limited_batches(loaders_.val, options_.limit_val, "limit_val_batches");
  }
}

void DataConnector::set_train_batch_size(int64_t batch_size) {
  const auto former_size = std::exchange(train_batch_size_, batch_size);
  const DataLoader former = std::exchange(loaders_.train, loaders_.train.with_batch_size(batch_size));
  // While a checkpoint is being loaded, what is counted has not been counted yet.
  if (state_.running != RunningStage::kTrain) return;
  try {
    count_batches();
  } catch (const ConfigError&) {
    train_batch_size_ = former_size;
    loaders_.train = former;
    count_batches();
    throw;
  }
}

DataLoaderOptions DataConnector::for_independent_steps(const DataLoader& loader) const {
  DataLoaderOptions options = loader.options();
  if (loader.has_batch_sampler()) return options;
  options.batch_size = loader.batch_size(strategy_.data_parallel_rank().size);
  options.global_batch_size.reset();
  return options;
}

int64_t DataConnector::train_ranks() const {
  if (find_independent_steps(strategy_) != nullptr) return 1;
  return options_.given.use_distributed_sampler ? strategy_.data_parallel_rank().size : 1;
}

DataLoaderPosition DataConnector::position(int64_t epoch, int64_t batch) const {
  const Strategy::DataParallelRank own = strategy_.data_parallel_rank();
  return {.seed = seed_, .epoch = epoch, .batch = batch, .rank = own.rank, .world_size = own.size};
}

DataLoaderPosition DataConnector::train_position() const {
  DataLoaderPosition here = position(state_.progress.epoch, state_.progress.batch);
  here.first_example = state_.progress.first_example;
  if (train_ranks() == 1) {
    here.rank = 0;
    here.world_size = 1;
  }
  return here;
}

// ---- Batches

std::optional<Batch> DataConnector::fetch(DataLoader::Pass& pass, const char* activity_name, int64_t dataloader_idx) {
  const Activity activity(tracer_, activity_name);
  return noting_errors([&] { return pass.next(); },
                       [&](ErrorNotes& notes) { note_batch(notes, state_, pass.position(), dataloader_idx); });
}

std::optional<Batch> DataConnector::fetch_train(DataLoader::Pass& pass) {
  const auto before = pass.waited();
  auto batch = fetch(pass, "fetch_train_batch");
  waited_ += pass.waited() - before;
  return batch;
}

std::optional<data::TakenBatches::Taken> DataConnector::fetch_train(data::TakenBatches& batches) {
  const auto before = batches.waited();
  const Activity activity(tracer_, "fetch_train_batch");
  auto taken = noting_errors([&] { return batches.next(); },
                             [&](ErrorNotes& notes) { note_batch(notes, state_, state_.progress.batch); });
  waited_ += batches.waited() - before;
  return taken;
}

Batch DataConnector::join_batch(const DataLoader& loader) const {
  DataLoaderPosition first = position(state_.progress.epoch, 0);
  first.rank = 0;
  first.world_size = 1;
  auto batch = loader.copy().pass(first).next();
  if (!batch) throw Error("data", "a rank has no data at all; hint: give every rank at least one example");
  return std::move(*batch);
}

Batch DataConnector::sample() {
  const DataLoader loader = loaders_.train.copy();
  auto batch = loader.pass(train_position()).next();
  if (!batch) throw Error("data", "there are no training data");
  return transfer(std::move(*batch), 0);
}

Batch DataConnector::transfer(Batch batch, int64_t dataloader_idx, const std::optional<Batch>& next) {
  const Activity activity(tracer_, "transfer_batch");
  Module& module = *state_.module;
  const auto untouched = [&] {
    return module.untouched_batches() + (data_module_ == nullptr ? 0 : DataModule::untouched_batches());
  };
  // Before and after the transfer, of the data module and of the module.
  const auto run_before = [&](auto& object) {
    call_user(state_, "on_before_batch_transfer", object,
              [&] { batch = object.on_before_batch_transfer(std::move(batch), dataloader_idx); });
  };
  const auto run_after = [&](auto& object) {
    call_user(state_, "on_after_batch_transfer", object,
              [&] { batch = object.on_after_batch_transfer(std::move(batch), dataloader_idx); });
  };
  const int64_t before = untouched();
  if (data_module_ != nullptr) run_before(*data_module_);
  run_before(module);
  // A hook may write to a batch through a pointer, which nobody would notice.
  const bool may_copy_ahead = untouched() - before == (data_module_ == nullptr ? 1 : 2);
  call_user(state_, "transfer_batch_to_device", module, [&] {
    batch = module.transfer_batch_to_device(std::move(batch), strategy_.root_device(), dataloader_idx);
  });
  // Before all that this batch computes.
  if (next && prefetch_ != nullptr && may_copy_ahead)
    prefetch_->start(*next);
  else
    drop_prefetched();
  const Precision& precision = *options_.precision;
  for (auto& [name, tensor] : batch.items())
    if (tensor.defined() && tensor.is_floating_point()) tensor = in_memory_format(precision.convert_input(tensor));
  if (data_module_ != nullptr) run_after(*data_module_);
  run_after(module);
  return batch;
}

void DataConnector::drop_prefetched() {
  if (prefetch_ != nullptr) prefetch_->clear();
}

void DataConnector::use_prefetched(Batch& batch, const at::Device& device) {
  if (prefetch_ == nullptr || device != strategy_.root_device()) return;
  for (auto& [name, tensor] : batch.items()) {
    if (!tensor.defined()) continue;
    if (at::Tensor copy = prefetch_->take(tensor); copy.defined()) tensor = std::move(copy);
  }
}

at::Tensor DataConnector::in_memory_format(const at::Tensor& tensor) const {
  if (!options_.channels_last) return tensor;
  if (tensor.dim() == 4) return tensor.contiguous(at::MemoryFormat::ChannelsLast);
  return tensor.dim() == 5 ? tensor.contiguous(at::MemoryFormat::ChannelsLast3d) : tensor;
}

}  // namespace levin
