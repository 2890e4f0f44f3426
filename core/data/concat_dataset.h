#pragma once

#include <levin/core/data/dataset.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin::data {

/// Data sets one behind the other. Their examples must have tensors of the same names, shapes and types, unless the
/// first data set collates them. Each data set draws random numbers of its own.
class ConcatDataset : public Dataset {
 public:
  /// Throws levin::Error where there is no data set.
  explicit ConcatDataset(std::vector<std::shared_ptr<const Dataset>> datasets);

  int64_t size() const override { return ends_.back(); }
  Batch get(int64_t index, Generator& generator) const override;
  /// Throws levin::Error naming the tensor in which the examples of two data sets differ.
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override;
  /// Returns that of the first data set.
  CollateFunction collate() const override { return datasets_.front()->collate(); }

  const std::vector<std::shared_ptr<const Dataset>>& datasets() const { return datasets_; }

 private:
  struct Place {
    size_t dataset = 0;
    int64_t index = 0;
  };
  Place place_of(int64_t index) const;

  std::vector<std::shared_ptr<const Dataset>> datasets_;
  std::vector<int64_t> ends_;  ///< examples up to the end of each
};

}  // namespace levin::data
