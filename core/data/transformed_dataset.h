#pragma once

#include <levin/core/data/dataset.h>
#include <levin/core/data/transforms/transform.h>

#include <cstdint>
#include <memory>

namespace levin::data {

/// The examples of another data set, transformed. What is random follows from seed, epoch and example.
class TransformedDataset final : public Dataset {
 public:
  /// `keep_bytes`: an image that is bytes after the transforms stays bytes; else it becomes a float from 0 to 1.
  TransformedDataset(std::shared_ptr<const Dataset> dataset, Transforms transforms, bool keep_bytes = true);

  int64_t size() const override { return dataset_->size(); }
  Batch get(int64_t index, Generator& generator) const override;
  CollateFunction collate() const override { return dataset_->collate(); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  Transforms transforms_;
  bool keep_bytes_;
};

}  // namespace levin::data
