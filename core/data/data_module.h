#pragma once

#include <levin/core/base/events.h>
#include <levin/core/base/registry.h>
#include <levin/core/base/state.h>
#include <levin/core/data/data_loader.h>

#include <vector>

namespace levin {

/// Loaders of validation, test or prediction; one DataLoader converts.
class DataLoaders : public std::vector<DataLoader> {
 public:
  using std::vector<DataLoader>::vector;
  DataLoaders() = default;
  DataLoaders(DataLoader loader) {  // NOLINT(google-explicit-constructor)
    if (loader) push_back(std::move(loader));
  }
};

/// Data of a run: its preparation and its loaders. Hooks are called in this order: prepare_data, setup, the loaders,
/// teardown.
class DataModule : public Configurable, public Stateful {
 public:
  /// Downloads or converts files; called once a node, before any rank sets up. Must not set members.
  virtual void prepare_data() {}
  /// Opens the data; called once a process, however many ranks it has.
  virtual void setup(Stage /*stage*/) {}
  virtual void teardown(Stage /*stage*/) {}

  /// Return the loaders of a stage; an empty loader means that there is none.
  virtual DataLoader train_dataloader() { return {}; }
  virtual DataLoaders val_dataloader() { return {}; }
  virtual DataLoaders test_dataloader() { return {}; }
  virtual DataLoaders predict_dataloader() { return {}; }

  /// Transform a batch before and after its transfer to the device; see Module.
  virtual Batch on_before_batch_transfer(Batch batch, int64_t /*dataloader_idx*/) {
    ++untouched_batches_;
    return batch;
  }
  virtual Batch on_after_batch_transfer(Batch batch, int64_t /*dataloader_idx*/) { return batch; }

  /// Returns how often the calling thread has run this class's own on_before_batch_transfer.
  static int64_t untouched_batches() { return untouched_batches_; }

 private:
  inline static thread_local int64_t untouched_batches_ = 0;  ///< ranks that are threads share a data module
};

}  // namespace levin
