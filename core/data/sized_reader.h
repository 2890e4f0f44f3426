#pragma once

#include <levin/core/data/batch_plan.h>
#include <levin/core/data/batch_reader.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/index_order.h>
#include <levin/core/data/sampler.h>
#include <levin/core/data/skipped_examples.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace levin::data {

/// Data that all readers of one pass over a sized data set share.
struct SizedPass {
  std::shared_ptr<const Dataset> dataset;
  std::shared_ptr<const IndexOrder> order;
  BatchPlan plan;
  uint64_t seed = 0;
  int64_t epoch = 0;
  std::shared_ptr<SkippedExamples> skipped = nullptr;  ///< nullptr: an example that cannot be read is an error
};

/// Sets the order of a pass, and its batches where the sampler is a BatchSampler, from the pass's data set, seed and
/// epoch. `plan`: all but num_indices and ends. Throws levin::Error for an order that the data set does not have.
void set_order(SizedPass& pass, const Sampler& sampler, BatchPlan plan);

/// Reads every `stride`-th batch of a pass, starting with `first_batch`.
class SizedReader : public BatchReader {
 public:
  SizedReader(std::shared_ptr<const SizedPass> pass, int64_t first_batch, int64_t stride);
  std::optional<Batch> next() override;

 private:
  std::shared_ptr<const SizedPass> pass_;
  int64_t batch_;
  int64_t stride_;
};

}  // namespace levin::data
