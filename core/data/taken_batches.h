#pragma once

#include <levin/core/data/batch.h>
#include <levin/core/data/data_loader.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace levin::data {

/// A pass over a sized data set in which others say which batch comes next: several ranks that take batches from the
/// same epoch, each when it is ready for one. With num_workers in the loader's options one thread fetches one batch
/// ahead, which is then taken earlier.
class TakenBatches {
 public:
  /// Gives the number of the next batch, or nothing at the end. Called by one thread at a time.
  using Take = std::function<std::optional<int64_t>()>;

  TakenBatches(const DataLoader& loader, const DataLoaderPosition& position, Take take);
  /// Ends the fetching.
  ~TakenBatches();
  TakenBatches(const TakenBatches&) = delete;
  TakenBatches& operator=(const TakenBatches&) = delete;

  struct Taken {
    int64_t number;
    Batch batch;
  };
  /// The next batch, or nothing at the end. Throws what the data set throws.
  std::optional<Taken> next();
  /// Examples in the batch of a number.
  int64_t examples(int64_t number) const;
  /// Time spent in next() waiting for data.
  std::chrono::nanoseconds waited() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levin::data
