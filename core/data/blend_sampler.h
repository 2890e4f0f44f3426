#pragma once

#include <levin/core/data/index_order.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace levin::data {

/// What becomes of a source of a blend that has given all of its examples: it begins again, in its next epoch, or it
/// leaves, and the others share its weight.
enum class BlendEnd { kRepeat, kLeave };

/// A source of a blend.
struct BlendSource {
  std::string name = {};
  double weight = 0;  ///< share of it among the weights of all
  int64_t size = 0;   ///< of its data set
  std::shared_ptr<const Sampler> sampler = {};
};

/// Returns `weights` to the power 1 / temperature: 1 leaves them, more bring them nearer to each other. Throws
/// levin::Error for a weight below 0, for weights that are all zero, and for a temperature that is not above 0.
std::vector<double> tempered_weights(const std::vector<std::string>& names, std::vector<double> weights,
                                     double temperature);

/// The order of several data sets, one behind the other in a ConcatDataset, that draws the source of each example by
/// weight: a pure function of seed, epoch and place, of which some thousand places are in memory. Each source is
/// visited in the order of its own sampler. Where sources repeat, each has its share of an epoch to the example, and
/// goes on in the next epoch where it was; where they leave, an epoch has each of their examples once.
class BlendSampler : public UnlistedSampler {
 public:
  /// `examples`: of an epoch; 0: as many as all sources have. Throws levin::Error for weights that tempered_weights
  /// refuses, and for a source with a weight but no examples.
  BlendSampler(std::vector<BlendSource> sources, BlendEnd end, int64_t examples = 0);

  int64_t length(int64_t dataset_size) const override;
  std::shared_ptr<const IndexOrder> index_order(int64_t dataset_size, uint64_t seed, int64_t epoch) const override;

  const std::vector<BlendSource>& sources() const { return sources_; }
  /// Returns how many examples of each source an epoch has.
  const std::vector<int64_t>& counts() const { return counts_; }
  /// Returns how often each source has been gone through after so many epochs.
  std::vector<double> passes(int64_t epochs) const;
  /// Returns what its order follows from beside seed, epoch and the sources' own orders.
  std::string description() const;

 private:
  std::vector<BlendSource> sources_;
  BlendEnd end_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> lengths_;  ///< examples of an epoch of each source's own
};

}  // namespace levin::data
