#pragma once

#include <levin/core/data/dataset.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace levin::data {

/// Some examples of a data set, in the order of their indices. What is drawn at random for an example is what the whole
/// data set would draw for it.
class Subset : public Dataset {
 public:
  /// `indices`: of examples of `dataset`, in the order in which they are counted here; may repeat. Throws levin::Error
  /// for one that it does not have.
  Subset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> indices);

  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  Batch get(int64_t index, Generator& generator) const override;
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override;
  CollateFunction collate() const override { return dataset_->collate(); }

  const std::shared_ptr<const Dataset>& dataset() const { return dataset_; }
  const std::vector<int64_t>& indices() const { return indices_; }

 private:
  int64_t index_in_whole(int64_t index) const;

  std::shared_ptr<const Dataset> dataset_;
  std::vector<int64_t> indices_;
};

}  // namespace levin::data
