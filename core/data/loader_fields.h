#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/data_loader.h>

namespace levin::data {

/// Describes the fields of a data module's options that are named as those of DataLoaderOptions.
template <class Options>
void describe_loader_fields(Schema<Options>& schema) {
  using O = Options;
  schema.field("batch_size", &O::batch_size, "examples in a batch of one rank")
      .at_least(1)
      .at_most(DataLoaderOptions::kMaxBatchSize);
  schema
      .field("global_batch_size", &O::global_batch_size,
             "examples in a batch of all ranks together; replaces batch_size")
      .at_least(1)
      .at_most(DataLoaderOptions::kMaxBatchSize);
  schema.field("num_workers", &O::num_workers, "threads that fetch batches ahead; 0 fetches in the training thread")
      .at_least(0)
      .at_most(DataLoaderOptions::kMaxWorkers);
  schema.field("prefetch_factor", &O::prefetch_factor, "batches each worker keeps ready").at_least(1).at_most(10'000);
  schema.field("shuffle", &O::shuffle, "visit the training examples in an order drawn from seed and epoch");
  schema.field("drop_last", &O::drop_last, "leave out the last training batch when it is not full");
  schema.field("pin_memory", &O::pin_memory, "page-locked batches for faster copies to a CUDA device");
  schema.field("timeout", &O::timeout, "longest time of a batch of the workers (s); 0: no limit")
      .at_least(0)
      .at_most(DataLoaderOptions::kMaxTimeout);
  schema.field("persistent_workers", &O::persistent_workers, "keep the workers from one epoch to the next");
  schema.field("on_error", &O::on_error, "for an unreadable example; raise: end the run; skip: take the next one",
               {{"raise", OnError::kRaise}, {"skip", OnError::kSkip}});
}

/// Returns the options of the loader that trains, from the fields of a data module's options.
template <class Options>
DataLoaderOptions training_loader_options(const Options& options) {
  return {.batch_size = options.batch_size,
          .shuffle = options.shuffle,
          .num_workers = options.num_workers,
          .prefetch_factor = options.prefetch_factor,
          .pin_memory = options.pin_memory,
          .drop_last = options.drop_last,
          .global_batch_size = options.global_batch_size,
          .timeout = options.timeout,
          .persistent_workers = options.persistent_workers,
          .on_error = options.on_error};
}

/// Returns the options of the loader that evaluates.
template <class Options>
DataLoaderOptions evaluation_loader_options(const Options& options) {
  DataLoaderOptions loader = training_loader_options(options);
  loader.shuffle = false;
  loader.drop_last = false;
  return loader;
}

}  // namespace levin::data
