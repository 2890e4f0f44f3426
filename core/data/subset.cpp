#include <levin/core/data/subset.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace levin::data {

Subset::Subset(std::shared_ptr<const Dataset> dataset, std::vector<int64_t> indices)
    : dataset_(std::move(dataset)), indices_(std::move(indices)) {
  if (dataset_ == nullptr) throw Error("data", "a Subset was given no data set (a null pointer)");
  const int64_t whole = dataset_->size();
  const auto outside =
      std::find_if(indices_.begin(), indices_.end(), [&](int64_t index) { return index < 0 || index >= whole; });
  if (outside != indices_.end())
    throw Error("data", fmt::format("a Subset names example {} of a data set that has {}; valid: 0 to {}", *outside,
                                    whole, whole - 1));
}

int64_t Subset::index_in_whole(int64_t index) const {
  if (index < 0 || index >= size())
    throw Error("data", fmt::format("there is no example {}; the data set has {}", index, size()));
  return indices_[static_cast<size_t>(index)];
}

Batch Subset::get(int64_t index, Generator& generator) const {
  const int64_t in_whole = index_in_whole(index);
  Generator of_sample = generator.for_sample(in_whole);
  return dataset_->get(in_whole, of_sample);
}

Batch Subset::get_batch(std::span<const int64_t> indices, Generator& generator) const {
  std::vector<int64_t> in_whole;
  in_whole.reserve(indices.size());
  for (const int64_t index : indices) in_whole.push_back(index_in_whole(index));
  return dataset_->get_batch(in_whole, generator);
}

}  // namespace levin::data
