#include <levin/core/data/transformed_dataset.h>

#include <levin/core/base/error.h>

#include <utility>

namespace levin::data {

TransformedDataset::TransformedDataset(std::shared_ptr<const Dataset> dataset, Transforms transforms, bool keep_bytes)
    : dataset_(std::move(dataset)), transforms_(std::move(transforms)), keep_bytes_(keep_bytes) {
  if (dataset_ == nullptr) throw Error("data", "a transformed data set was given no data set (a null pointer)");
}

Batch TransformedDataset::get(int64_t index, Generator& generator) const {
  Batch example = dataset_->get(index, generator);
  apply_transforms(transforms_, example, generator);
  if (!keep_bytes_) bytes_to_float(example);
  return example;
}

}  // namespace levin::data
