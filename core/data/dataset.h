#pragma once

#include <levin/core/base/state.h>
#include <levin/core/data/batch.h>
#include <levin/core/data/generator.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace levin::data {

/// Puts examples together into a batch.
using CollateFunction = std::function<Batch(std::span<const Batch> examples)>;

/// A sized data set. Override `get`, or `get_batch` where a whole batch can be fetched at once. Both are called from
/// several worker threads at a time and must draw random numbers only from the generator they are given.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Returns the number of examples.
  virtual int64_t size() const = 0;

  /// Returns one example, without a batch dimension. Default: the only element of get_batch({index}).
  virtual Batch get(int64_t index, Generator& generator) const;

  /// Returns the examples of these indices with a batch dimension in front. `generator.for_sample(index)` is the stream
  /// of one example. Default: `get` for each index, collated by `collate`.
  virtual Batch get_batch(std::span<const int64_t> indices, Generator& generator) const;

  /// Returns the function that puts examples of `get` together, for instance by padding. Default: nullptr, which stacks
  /// tensors by name as the examples come, so that they need not all be in memory at once.
  virtual CollateFunction collate() const { return nullptr; }
};

/// Part of an unsized data set that a stream reads. Worker w of rank r is reader r * num_workers + w.
struct StreamContext {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t reader = 0;
  int64_t num_readers = 1;
};

/// One pass of one reader over an unsized data set.
class ExampleStream {
 public:
  virtual ~ExampleStream() = default;
  /// Returns the next example, without a batch dimension, or nothing at the end.
  virtual std::optional<Batch> next() = 0;
  /// Skips the next `count` examples when a run is resumed. Default: reads them.
  virtual void skip(int64_t count);
};

/// A data set whose size is not known. Readers must divide the examples among themselves by their context.
class IterableDataset {
 public:
  virtual ~IterableDataset() = default;
  virtual std::unique_ptr<ExampleStream> stream(const StreamContext& context) const = 0;
  /// Returns the function that puts examples together. Default: nullptr, which stacks tensors by name.
  virtual CollateFunction collate() const { return nullptr; }
  /// Returns what the order of its examples follows from beside seed, epoch and readers, for messages and to notice
  /// another order when a run is resumed inside of an epoch.
  virtual std::string order() const { return ""; }
};

/// Stacks examples by tensor name into one batch. Throws levin::Error naming the tensor whose shapes or types differ.
Batch stack_examples(std::span<const Batch> examples);

}  // namespace levin::data
