#pragma once

#include <levin/core/data/blend_sampler.h>
#include <levin/core/data/data_loader.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace levin::data {

/// Streams that draw the source of each example by weight, from seed, epoch and reader: of data sets of which one has
/// no size. Each reader has its part of each source.
class BlendStream : public IterableDataset {
 public:
  struct Source {
    std::string name = {};
    double weight = 0;
    DataLoader loader = {};  ///< whose data set and order it has
  };
  /// `examples`: of an epoch, of all readers together; needed where sources repeat. Throws levin::Error for weights
  /// that tempered_weights refuses.
  BlendStream(std::vector<Source> sources, BlendEnd end, int64_t examples);

  std::unique_ptr<ExampleStream> stream(const StreamContext& context) const override;
  /// Returns that of the first source with a size.
  CollateFunction collate() const override;
  std::string order() const override;

 private:
  std::vector<Source> sources_;
  BlendEnd end_;
  int64_t examples_;
};

}  // namespace levin::data
