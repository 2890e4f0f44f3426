#pragma once

#include <levin/core/data/sampler.h>

namespace levin::data {

/// Options of LengthGroupedSampler.
struct LengthGroupedSamplerOptions {
  int64_t group_size = 1;  ///< examples that stay together: those of a batch of all ranks, or of one
  int64_t window = 50;     ///< groups whose examples are drawn together, before they are sorted by length
};

/// A shuffled order in which neighbours have about the same length, so that batches need little padding: `window`
/// groups of random examples are sorted by length, and then the groups of all windows are shuffled. The group with the
/// longest example comes first, so that memory that does not suffice shows at once. Drawn from (seed, epoch).
class LengthGroupedSampler : public Sampler {
 public:
  using Options = LengthGroupedSamplerOptions;
  /// `lengths`: one for each example. Throws levin::Error for options below 1.
  LengthGroupedSampler(std::vector<int64_t> lengths, const Options& options);

  /// Throws levin::Error when the data set has another number of examples than there are lengths.
  std::vector<int64_t> order(int64_t dataset_size, uint64_t seed, int64_t epoch) const override;
  int64_t length(int64_t dataset_size) const override { return dataset_size; }
  const Options& options() const { return options_; }
  const std::vector<int64_t>& lengths() const { return lengths_; }

 private:
  std::vector<int64_t> lengths_;
  Options options_;
};

}  // namespace levin::data
