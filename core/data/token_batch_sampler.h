#pragma once

#include <levin/core/data/batch_sampler.h>

namespace levin::data {

/// Options of TokenBatchSampler.
struct TokenBatchSamplerOptions {
  int64_t max_tokens = 0;    ///< of a batch of all ranks together, its padding included
  int64_t num_buckets = 30;  ///< at most
  bool shuffle = true;       ///< false: batches by length, always the same
};

/// Batches of a budget of tokens: many short examples, or few long ones. The examples are sorted by length and divided
/// into buckets of about as many tokens; a batch has random examples of one bucket, as many as the budget allows of its
/// longest one; then all batches are shuffled. Drawn from (seed, epoch). There are fewer buckets where the data do not
/// fill two batches of each.
class TokenBatchSampler : public BatchSampler {
 public:
  using Options = TokenBatchSamplerOptions;
  /// `lengths`: tokens of each example. Throws levin::Error for an example that is longer than the budget, and for
  /// options below 1.
  TokenBatchSampler(std::vector<int64_t> lengths, const Options& options);

  /// Throws levin::Error when the data set has another number of examples than there are lengths.
  Batches batches(int64_t dataset_size, uint64_t seed, int64_t epoch) const override;
  int64_t num_batches(int64_t dataset_size) const override;
  int64_t length(int64_t dataset_size) const override { return dataset_size; }

 private:
  struct Bucket {
    int64_t begin = 0;  ///< in `sorted_`
    int64_t end = 0;
    int64_t num_batches = 0;
  };

  std::vector<int64_t> sorted_;  ///< examples, the shortest first
  std::vector<Bucket> buckets_;
  bool shuffle_;
};

}  // namespace levin::data
