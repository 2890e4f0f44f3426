#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/sampler.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace levin {

struct DataLoaderOptions {
  static constexpr int64_t kMaxBatchSize = (int64_t{1} << 31) - 1;
  static constexpr int64_t kMaxWorkers = 1024;

  int64_t batch_size = 1;       ///< examples in a batch of one rank
  bool shuffle = false;         ///< visit examples in an order drawn from (seed, epoch)
  int64_t num_workers = 0;      ///< threads that fetch batches ahead; 0 fetches in the calling thread
  int64_t prefetch_factor = 2;  ///< batches each worker keeps ready
  bool pin_memory = false;      ///< page-locked batches, copied to a CUDA device ahead of time; no effect without CUDA
  bool drop_last = false;       ///< leave out the last batch when it is not full
  /// Examples in a batch of all ranks together, divided by their number; replaces batch_size.
  std::optional<int64_t> global_batch_size = {};

  static void describe(Schema<DataLoaderOptions>& schema);
};

/// Where one pass over a loader starts and which part of each batch this rank takes.
struct DataLoaderPosition {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t batch = 0;  ///< batches of this pass that were consumed already; for unsized data, by this rank
  int64_t rank = 0;
  int64_t world_size = 1;
  /// Examples of this epoch that all ranks together consumed before batch 0 of this pass; sized data only. A run that
  /// is resumed with other batches than it was saved with starts in the middle of one.
  int64_t first_example = 0;
};

/// Batches of a data set, fetched ahead by worker threads. Cheap to copy: copies share the data set and the threads.
/// The order of batches depends on (seed, epoch) only, never on the workers, so a position is exact.
class DataLoader {
 public:
  DataLoader() = default;
  DataLoader(std::shared_ptr<const data::Dataset> dataset, const DataLoaderOptions& options = {},
             std::shared_ptr<const data::Sampler> sampler = nullptr);
  DataLoader(std::shared_ptr<const data::IterableDataset> dataset, const DataLoaderOptions& options = {});

  /// Data sets of a derived type, so that `DataLoader(std::make_shared<Mine>(), {...})` works.
  template <class D>
  requires std::is_convertible_v<D*, const data::Dataset*> DataLoader(
      std::shared_ptr<D> dataset, const DataLoaderOptions& options = {},
      std::shared_ptr<const data::Sampler> sampler = nullptr)
      : DataLoader(std::shared_ptr<const data::Dataset>(std::move(dataset)), options, std::move(sampler)) {}
  template <class D>
  requires std::is_convertible_v<D*, const data::IterableDataset*> DataLoader(std::shared_ptr<D> dataset,
                                                                              const DataLoaderOptions& options = {})
      : DataLoader(std::shared_ptr<const data::IterableDataset>(std::move(dataset)), options) {}

  /// Whether it was given a data set.
  explicit operator bool() const { return static_cast<bool>(core_); }
  const DataLoaderOptions& options() const;
  /// Batches of a whole pass of rank 0; nothing when the data set is unsized. Where the examples left over for the last
  /// batch are fewer than the ranks, the others have one batch less.
  std::optional<int64_t> num_batches(int64_t world_size = 1, int64_t first_example = 0) const;
  /// Examples in a batch of one rank. Throws levin::Error when global_batch_size cannot be divided.
  int64_t batch_size(int64_t world_size) const;
  /// Examples in the data set; nothing when it is unsized.
  std::optional<int64_t> num_examples() const;
  const std::shared_ptr<const data::Dataset>& dataset() const;
  const std::shared_ptr<const data::Sampler>& sampler() const;

  /// The same data set read with other options or in another order, by threads of its own.
  DataLoader with_options(const DataLoaderOptions& options) const;
  /// The same with so many examples in a batch of one rank.
  DataLoader with_batch_size(int64_t batch_size) const;
  DataLoader with_sampler(std::shared_ptr<const data::Sampler> sampler) const;

  class Pass;
  /// Starts one pass at a position. One pass of a loader (and its copies) runs at a time; a new one ends the last,
  /// whose next() then throws. Ranks that are threads therefore use loaders of their own (with_options).
  Pass pass(const DataLoaderPosition& position) const;

 private:
  struct Core;
  Core& core() const;
  std::shared_ptr<Core> core_;
};

/// One pass over a loader. Movable; ends the fetching when it goes.
class DataLoader::Pass {
 public:
  class State;
  explicit Pass(std::unique_ptr<State> state);
  Pass(Pass&&) noexcept;
  Pass& operator=(Pass&&) noexcept;
  ~Pass();

  /// The next batch, or nothing at the end. What a data set throws in a worker is thrown here, with its type, in its
  /// turn, and again by each later call.
  std::optional<Batch> next();
  /// Batches not yet returned; nothing when the data set is unsized.
  std::optional<int64_t> remaining() const;
  /// Batches returned so far in this pass, those before its starting position included.
  int64_t position() const;
  /// How many examples of a batch of this pass are this rank's and how many those of all ranks; nothing when the data
  /// set is unsized.
  struct Share {
    int64_t own = 0;
    int64_t all = 0;
  };
  std::optional<Share> share(int64_t batch) const;
  /// Time spent in next() waiting for data.
  std::chrono::nanoseconds waited() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace levin
