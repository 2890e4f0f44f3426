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
             "examples in a batch of all ranks together, divided by their number; replaces batch_size")
      .at_least(1)
      .at_most(DataLoaderOptions::kMaxBatchSize);
  schema.field("num_workers", &O::num_workers, "threads that fetch batches ahead; 0 fetches in the training thread")
      .at_least(0)
      .at_most(DataLoaderOptions::kMaxWorkers);
  schema.field("prefetch_factor", &O::prefetch_factor, "batches each worker keeps ready").at_least(1).at_most(10'000);
  schema.field("shuffle", &O::shuffle, "visit the training examples in an order drawn from seed and epoch");
  schema.field("drop_last", &O::drop_last, "leave out the last training batch when it is not full");
  schema.field("pin_memory", &O::pin_memory, "page-locked batches for faster copies to a CUDA device");
}

/// Returns the options of the loader that evaluates, from the fields of a data module's options.
template <class Options>
DataLoaderOptions evaluation_loader_options(const Options& options) {
  return {.batch_size = options.batch_size,
          .num_workers = options.num_workers,
          .prefetch_factor = options.prefetch_factor,
          .pin_memory = options.pin_memory,
          .global_batch_size = options.global_batch_size};
}

/// Returns the options of the loader that trains.
template <class Options>
DataLoaderOptions training_loader_options(const Options& options) {
  DataLoaderOptions loader = evaluation_loader_options(options);
  loader.shuffle = options.shuffle;
  loader.drop_last = options.drop_last;
  return loader;
}

}  // namespace levin::data
