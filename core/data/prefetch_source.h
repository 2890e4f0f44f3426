#pragma once

#include <levin/core/data/batch_queue.h>
#include <levin/core/data/batch_reader.h>
#include <levin/core/data/batch_source.h>
#include <levin/core/data/worker_pool.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin::data {

/// Source of batches that worker threads fetch ahead. Worker w runs reader w; the batches are taken from the workers in
/// turn, leaving out those whose reader has ended, so that their order does not depend on who is faster.
class PrefetchSource : public BatchSource {
 public:
  /// One reader for each thread of the pool. `depth`: batches that a worker keeps ready. `turn`: the worker that gives
  /// the first batch.
  PrefetchSource(std::shared_ptr<WorkerPool> pool, std::vector<std::unique_ptr<BatchReader>> readers, int64_t depth,
                 int64_t turn);
  ~PrefetchSource() override;

  std::optional<Batch> next(std::chrono::nanoseconds& waited) override;
  void stop() override;

 private:
  struct Lane {
    Lane(std::unique_ptr<BatchReader> lane_reader, int64_t depth) : reader(std::move(lane_reader)), queue(depth) {}
    std::unique_ptr<BatchReader> reader;
    BatchQueue queue;
    bool ended = false;  ///< seen by the consumer
  };

  static void fetch(Lane& lane);

  std::shared_ptr<WorkerPool> pool_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  size_t turn_;
  size_t running_;
  WorkerPool::Ticket ticket_;
};

}  // namespace levin::data
