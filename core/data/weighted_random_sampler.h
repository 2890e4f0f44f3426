#pragma once

#include <levin/core/data/sampler.h>

#include <optional>
#include <span>

namespace levin::data {

/// Options of WeightedRandomSampler.
struct WeightedRandomSamplerOptions {
  std::optional<int64_t> num_samples = {};  ///< examples drawn in an epoch; nothing: as many as the data set has
  bool replacement = true;                  ///< an example may be drawn again in the same epoch
};

/// Draws examples from (seed, epoch), each as often as its weight says: of the others that may still be drawn, with the
/// probability that is its part of the sum of their weights. An example that is drawn twice in an epoch draws the same
/// random numbers both times.
class WeightedRandomSampler : public Sampler {
 public:
  using Options = WeightedRandomSamplerOptions;
  /// `weights`: one for each example. Throws levin::Error for weights below 0, without a sum, and for more samples than
  /// may be drawn without replacement.
  explicit WeightedRandomSampler(std::vector<double> weights, const Options& options = {});

  /// Throws levin::Error when the data set has another number of examples than there are weights.
  std::vector<int64_t> order(int64_t dataset_size, uint64_t seed, int64_t epoch) const override;
  int64_t length(int64_t dataset_size) const override { return options_.num_samples.value_or(dataset_size); }

 private:
  std::vector<int64_t> draw_with_replacement(int64_t count, uint64_t seed, int64_t epoch) const;
  std::vector<int64_t> draw_without_replacement(int64_t count, uint64_t seed, int64_t epoch) const;

  std::vector<double> weights_;
  std::vector<double> sums_;  ///< of the weights up to each
  Options options_;
};

/// Returns weights with which every class is drawn as often as every other one: for each example one over the number of
/// examples of its class. Throws levin::Error where there are no examples.
std::vector<double> class_balanced_weights(std::span<const int64_t> labels);

/// Returns for each example the weight of its class. Throws levin::Error for a label without a weight.
std::vector<double> class_weights(std::span<const int64_t> labels, std::span<const double> weights);

}  // namespace levin::data
