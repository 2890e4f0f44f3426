#pragma once

#include <levin/core/data/batch_queue.h>
#include <levin/core/data/batch_reader.h>
#include <levin/core/data/batch_source.h>
#include <levin/core/data/fetch_trace.h>
#include <levin/core/data/worker_pool.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace levin::data {

/// Source of batches that worker threads fetch ahead. Worker w runs reader w; the batches are taken from the workers in
/// turn, leaving out those whose reader has ended, so that their order does not depend on who is faster.
class PrefetchSource : public BatchSource {
 public:
  struct Options {
    int64_t depth = 2;  ///< batches that a worker keeps ready
    int64_t turn = 0;   ///< the worker that gives the first batch
    /// How long next() waits for a batch and stop() for the workers; then the pool is abandoned, and next() throws an
    /// error that says what the worker is doing. Nothing: for ever.
    std::optional<std::chrono::nanoseconds> timeout = {};
  };
  /// Returns the timeout of a loader's option, in seconds; nothing for 0.
  static std::optional<std::chrono::nanoseconds> timeout_of(double seconds);

  /// One reader for each thread of the pool.
  PrefetchSource(std::shared_ptr<WorkerPool> pool, std::vector<std::unique_ptr<BatchReader>> readers, Options options);
  ~PrefetchSource() override;

  std::optional<Batch> next(std::chrono::nanoseconds& waited) override;
  void stop() override;

 private:
  struct Lane {
    Lane(std::unique_ptr<BatchReader> lane_reader, int64_t depth) : reader(std::move(lane_reader)), queue(depth) {}
    std::unique_ptr<BatchReader> reader;
    BatchQueue queue;
    FetchTrace trace;
    bool ended = false;  ///< seen by the consumer
  };
  using Lanes = std::vector<std::unique_ptr<Lane>>;

  static void fetch(Lane& lane, bool traces);
  [[noreturn]] void throw_timeout(const Lane& lane);

  Options options_;
  std::shared_ptr<WorkerPool> pool_;
  std::shared_ptr<const Lanes> lanes_;  ///< of the workers, too, which may outlive this object
  size_t turn_;
  size_t running_;
  WorkerPool::Ticket ticket_;
};

}  // namespace levin::data
