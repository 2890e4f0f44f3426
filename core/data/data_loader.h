#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/data/combined_plan.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/sampler.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace levin {

namespace data {
/// What becomes of an example that cannot be read.
enum class OnError { kRaise, kSkip };
}  // namespace data

/// Options of DataLoader, explained in describe().
struct DataLoaderOptions {
  static constexpr int64_t kMaxBatchSize = (int64_t{1} << 31) - 1;
  static constexpr int64_t kMaxWorkers = 1024;
  static constexpr double kMaxTimeout = 1e6;

  int64_t batch_size = 1;
  bool shuffle = false;
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;
  bool pin_memory = false;  ///< no effect without CUDA
  bool drop_last = false;
  std::optional<int64_t> global_batch_size = {};
  double timeout = 0;              ///< seconds; 0: none
  bool persistent_workers = true;  ///< no effect without workers
  data::OnError on_error = data::OnError::kRaise;
  bool lookahead = true;  ///< false: training asks for a batch after the optimizer step before it

  static void describe(Schema<DataLoaderOptions>& schema);
};

/// Start of one pass over a loader, and this rank's part of each batch.
struct DataLoaderPosition {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t batch = 0;  ///< batches of this pass consumed already; for unsized data, by this rank
  int64_t rank = 0;
  int64_t world_size = 1;
  /// Examples of this epoch that all ranks together consumed before batch 0 of this pass; sized data only. Above 0 when
  /// a run is resumed in mid-epoch with another batch size or number of ranks.
  int64_t first_example = 0;
};

/// Batches of a data set, fetched ahead by worker threads. Cheap to copy: copies share the data set and the threads.
/// The order of batches depends on (seed, epoch) only, never on the workers, so a position is exact. Of unsized data it
/// depends on the numbers of ranks and workers and on the batch size too.
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

  using Part = std::pair<std::string, DataLoader>;
  /// Returns a loader of training whose batches have one of each part in them: the tensor "x" of the part "a" as "a.x",
  /// see Batch::part. Each part keeps its own options; positions in all of them follow from the number of combined
  /// batches. Throws levin::Error for parts without or with equal names, and for unsized ones in the modes
  /// kMaxSizeCycle and kSequential.
  static DataLoader combined(std::vector<Part> parts, CombinedMode mode = CombinedMode::kMaxSizeCycle);
  /// Returns the parts of a combined loader; none of any other.
  const std::vector<Part>& parts() const;

  /// Returns whether it was given a data set, or parts.
  explicit operator bool() const { return static_cast<bool>(core_); }
  /// Returns the options; of a combined loader those of its first part.
  const DataLoaderOptions& options() const;
  /// Returns the number of rank 0's batches in a whole pass; nothing when the data set is unsized. Other ranks have one
  /// batch less when fewer examples than ranks are left for the last one.
  std::optional<int64_t> num_batches(int64_t world_size = 1, int64_t first_example = 0) const;
  /// Returns the number of examples in a batch of one rank; of a combined loader the sum of its parts'. Throws
  /// levin::Error when global_batch_size cannot be divided, and where the batches differ in size: see
  /// has_batch_sampler.
  int64_t batch_size(int64_t world_size) const;
  /// Returns whether its sampler is a data::BatchSampler, which says the batches of all ranks.
  bool has_batch_sampler() const;
  /// Returns the option lookahead; false for a combined loader of which a part says so.
  bool looks_ahead() const;
  /// Returns the number of examples in the data set, or the sum of all parts'; nothing when one is unsized.
  std::optional<int64_t> num_examples() const;
  /// Return the data set and its order; nullptr where it is unsized, and of a combined loader.
  const std::shared_ptr<const data::Dataset>& dataset() const;
  const std::shared_ptr<const data::Sampler>& sampler() const;
  /// Returns the unsized data set; nullptr where there is none.
  const std::shared_ptr<const data::IterableDataset>& iterable() const;

  /// Returns the same loader with threads of its own.
  DataLoader copy() const;
  /// Returns such a loader whose examples come in the order of the data set.
  DataLoader in_order() const;
  /// Returns such a loader with so many workers, which look ahead.
  DataLoader with_num_workers(int64_t num_workers) const;
  /// Returns a loader of the same data set with other options or another order, and threads of its own. Throws
  /// levin::Error for a combined loader, whose parts have options of their own.
  DataLoader with_options(const DataLoaderOptions& options) const;
  /// Returns such a loader with `batch_size` examples in a batch of one rank; of a combined loader they are divided in
  /// the ratio of its parts' batch sizes, at least one for each. Throws levin::Error for a combined loader whose
  /// batches are of one part at a time (CombinedMode::kSequential), and where the batches differ in size.
  DataLoader with_batch_size(int64_t batch_size) const;
  /// Returns such a loader without a last batch that is not full.
  DataLoader full_batches() const;
  DataLoader with_sampler(std::shared_ptr<const data::Sampler> sampler) const;

  class Pass;
  /// Starts one pass at a position. One pass of a loader (and its copies) runs at a time; a new one ends the last,
  /// whose next() then throws. Ranks that are threads therefore use loaders of their own (with_options).
  Pass pass(const DataLoaderPosition& position) const;

 private:
  struct Core;
  Core& core() const;
  Core& core_of_one(const char* wanted) const;
  template <class Change>
  DataLoader with_each_part(const Change& change) const;
  std::shared_ptr<Core> core_;
};

/// One pass over a loader. Movable; its destructor ends the fetching.
class DataLoader::Pass {
 public:
  class State;
  explicit Pass(std::unique_ptr<State> state);
  Pass(Pass&&) noexcept;
  Pass& operator=(Pass&&) noexcept;
  ~Pass();

  /// Returns the next batch, or nothing at the end. An exception of the data set in a worker is thrown here, with its
  /// type, in its batch's turn, and again by each later call. Throws levin::Error naming the example where the workers
  /// take longer than the timeout; they are then left to themselves. With OnError::kSkip the pass prints how many
  /// examples could not be read, and which, when it ends.
  std::optional<Batch> next();
  /// Returns the number of batches still to come; nothing when the data set is unsized.
  std::optional<int64_t> remaining() const;
  /// Returns the number of batches returned so far, those before its starting position included.
  int64_t position() const;
  /// Numbers of examples in a batch of this pass, of this rank and of all ranks. Where this rank has none, the one that
  /// its batch has is there to join the others' step on.
  struct Share {
    int64_t own = 0;
    int64_t all = 0;
  };
  std::optional<Share> share(int64_t batch) const;
  /// Returns the time spent in next() waiting for data.
  std::chrono::nanoseconds waited() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace levin
