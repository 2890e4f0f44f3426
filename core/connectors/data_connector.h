#pragma once

#include <levin/core/connectors/batch_prefetch.h>
#include <levin/core/connectors/tracer.h>
#include <levin/core/connectors/trainer_state.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/taken_batches.h>
#include <levin/core/options/resolved_options.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace levin {

/// The loaders of a call, one kind for each stage.
struct StageLoaders {
  DataLoader train;
  DataLoaders val;
  DataLoaders test;
  DataLoaders predict;
};

/// Owns the source of batches: the data module and loaders of a call, how many batches each gives and where in the
/// order of examples they start, and their way to the device.
class DataConnector {
 public:
  DataConnector(const ResolvedOptions& options, TrainerState& state, Tracer& tracer);

  // ---- A call's data.

  /// Takes what a call was given; nothing of the call before it stays.
  void begin_call(std::shared_ptr<DataModule> data_module, const StageLoaders& given);
  /// Runs prepare_data (local rank 0 only) and the data module's setup (once a process); a collective.
  void set_up();
  /// Runs the data module's setup alone, for what configure_model reads in a process that is not a rank.
  void set_up_data_module();
  /// Runs the data module's teardown, once, where its setup has run.
  void tear_down();
  /// The same after an error, which matters more: what the hook throws is logged.
  void tear_down_after_failure();
  /// Asks for the stage's loaders, where the call was given none. Throws levin::Error where there are none.
  void select_loaders();
  /// Takes the loaders of a validation that the caller of the steps asks for.
  void set_validation_loaders(const DataLoaders& loaders);
  /// Returns where training is in a loader whose batches the caller takes himself; see resume_batches.
  DataLoaderPosition position_in(const DataLoader& train);
  /// Sets what copies the next batch beside the present one's step, where the device can; nullptr: nothing does.
  void set_prefetch(std::unique_ptr<BatchPrefetch> prefetch) { prefetch_ = std::move(prefetch); }

  DataModule* data_module() const { return data_module_.get(); }
  const StageLoaders& loaders() const { return loaders_; }
  /// Marks the data module as another rank's of this process, whose thread calls its setup and teardown.
  void share_data_module() { shares_data_module_ = true; }
  bool shares_data_module() const { return shares_data_module_; }

  // ---- Order and number of batches.

  /// Forgets what earlier fits found out.
  void begin_fit();
  /// Seed of the order of examples and of all that is drawn for them.
  uint64_t seed() const { return seed_; }
  void set_seed(uint64_t seed) { seed_ = seed; }
  /// Counts the batches of an epoch and of each validation, and the batches between two validations. Throws ConfigError
  /// where the options do not fit them.
  void count_batches();
  /// Throws levin::Error where the training data give no batch, though the options do not ask for none.
  void require_training_data() const;
  /// Batches of a training epoch, after limits; nothing while unsized.
  const std::optional<int64_t>& train_batches() const { return train_batches_; }
  /// The same of a whole epoch, where the one under way goes on with batches of another size.
  const std::optional<int64_t>& whole_epoch_batches() const { return whole_epoch_batches_; }
  /// Batches of each validation loader, after limits; -1 where unsized.
  const std::vector<int64_t>& validation_batches() const { return validation_batches_; }
  /// Whether a fit validates: there are loaders, and options leave batches of them.
  bool validates() const;
  /// Batches between two validations inside an epoch; nothing where it has one at its end.
  const std::optional<int64_t>& validation_interval() const { return validation_interval_; }
  /// Batches of each loader of the stage, which is no fit, after limits; -1 where unsized.
  std::vector<int64_t> evaluation_batches() const;
  /// Trains with so many examples in a batch of one rank from here on, and counts again. Throws ConfigError, and
  /// nothing has changed, where other options do not allow it.
  void set_train_batch_size(int64_t batch_size);
  /// Ranks that the batches of training are divided over; 1 where each rank takes whole ones.
  int64_t train_ranks() const;
  /// Examples in a training batch of all ranks together; 0 where batches differ in size.
  int64_t global_batch_size() const;
  /// What the order of the training data follows from beside seed and epoch; empty: nothing.
  std::string train_order() const;
  std::string order_of(const DataLoader& train) const;
  /// Asks again, after the progress was loaded, for the loaders that its epoch trains on, where they change by epoch.
  void reload_for_resume();
  /// Goes on, after the progress was loaded, at the example that was next when it was saved, whatever the batches were.
  /// Throws levin::Error where that cannot be: inside an epoch of batches that differ in size, for others.
  void resume_batches();
  /// Position of this rank's part of a batch.
  DataLoaderPosition position(int64_t epoch, int64_t batch) const;
  /// Position of the training batch under way: in the whole loader where its batches are not divided over the ranks.
  DataLoaderPosition train_position() const;

  // ---- Batches.

  /// Takes the next batch of a pass. `activity`: a string literal. An error says which batch.
  std::optional<Batch> fetch(DataLoader::Pass& pass, const char* activity, int64_t dataloader_idx = -1);
  /// Takes the next training batch; counts how long the loop waited for it.
  std::optional<Batch> fetch_train(DataLoader::Pass& pass);
  /// Takes the next training batch where ranks take batches.
  std::optional<data::TakenBatches::Taken> fetch_train(data::TakenBatches& batches);
  /// Time that this fit has waited for training batches.
  std::chrono::nanoseconds waited() const { return waited_; }
  /// Reads the batch on which a rank without data joins a step of the others: the first that rank 0 has. Throws
  /// levin::Error where there is none at all.
  Batch join_batch(const DataLoader& loader) const;
  /// Runs the transfer hooks and moves the batch to the device. The copy of `next`, the batch to be transferred after
  /// it, is started where it can go on beside this batch's step.
  Batch transfer(Batch batch, int64_t dataloader_idx, const std::optional<Batch>& next = std::nullopt);
  /// The first training batch, on the device.
  Batch sample();
  /// Whether a batch is copied ahead where `transfer` is given it.
  bool prefetches() const { return prefetch_ != nullptr; }
  /// Frees what was copied ahead.
  void drop_prefetched();
  /// Puts what was copied to the device ahead of time in place of tensors of the host.
  void use_prefetched(Batch& batch, const at::Device& device);
  /// Gives images and volumes the option memory_format; others stay as they are.
  at::Tensor in_memory_format(const at::Tensor& tensor) const;

 private:
  DataLoader train_loader() const;
  DataLoaderOptions for_independent_steps(const DataLoader& loader) const;
  DataLoaders evaluation_loaders(const char* name, const DataLoaders& given, DataLoaders (DataModule::*of_data)(),
                                 DataLoaders (Module::*of_module)()) const;
  std::vector<int64_t> limited_batches(const DataLoaders& loaders, const BatchLimit& limit, const char* option) const;

  const ResolvedOptions& options_;
  TrainerState& state_;
  Tracer& tracer_;
  Strategy& strategy_;
  std::shared_ptr<DataModule> data_module_;
  bool shares_data_module_ = false;
  std::optional<Stage> set_up_for_;  ///< setup of the data module has run, and teardown has not
  StageLoaders given_;
  StageLoaders loaders_;
  std::unique_ptr<BatchPrefetch> prefetch_;
  uint64_t seed_ = 0;
  std::optional<int64_t> train_batch_size_;  ///< of one rank, where a search has found out; else the loader says
  std::optional<int64_t> train_batches_;
  std::optional<int64_t> whole_epoch_batches_;
  std::vector<int64_t> validation_batches_;
  std::optional<int64_t> validation_interval_;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace levin
