#include <levin/core/data/concat_dataset.h>

#include <levin/core/base/error.h>
#include <levin/core/base/seed.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace levin::data {

namespace {

/// The generator of one of the data sets: examples of the same index in several of them are not drawn alike.
Generator generator_of(size_t dataset, Generator& of_batch) {
  const auto stream = static_cast<int64_t>(of_batch.next() >> 1);
  const uint64_t seed = dataset == 0 ? of_batch.seed() : mix_seed(of_batch.seed(), 0x636f'6e63'6174, dataset);
  return {seed, of_batch.epoch(), stream};
}

std::string described(const at::Tensor& tensor) {
  return fmt::format("{} {}", c10::str(tensor.sizes().slice(1)), c10::toString(tensor.scalar_type()));
}

void check_alike(const Batch& first, size_t first_dataset, const Batch& other, size_t other_dataset) {
  for (const auto& [name, tensor] : first.items()) {
    const at::Tensor* same = other.find(name);
    if (same == nullptr || other.items().size() != first.items().size())
      throw Error("data", fmt::format("the data sets of a ConcatDataset give different tensors: data set {} has {}, "
                                      "data set {} has {}, and '{}' is {}",
                                      first_dataset, first.items().size(), other_dataset, other.items().size(), name,
                                      same == nullptr ? "in the first alone" : "in both"));
    if (tensor.dim() == 0) continue;
    if (same->dim() != tensor.dim() || same->sizes().slice(1) != tensor.sizes().slice(1) ||
        same->scalar_type() != tensor.scalar_type())
      throw Error("data", fmt::format("the data sets of a ConcatDataset give different examples: '{}' is {} in data "
                                      "set {} and {} in data set {}; hint: bring them to one shape and type, or "
                                      "override collate() of the first",
                                      name, described(tensor), first_dataset, described(*same), other_dataset));
  }
}

}  // namespace

ConcatDataset::ConcatDataset(std::vector<std::shared_ptr<const Dataset>> datasets) : datasets_(std::move(datasets)) {
  if (datasets_.empty()) throw Error("data", "a ConcatDataset needs at least one data set");
  int64_t end = 0;
  for (const auto& dataset : datasets_) {
    if (dataset == nullptr) throw Error("data", "a ConcatDataset was given no data set (a null pointer)");
    ends_.push_back(end += dataset->size());
  }
}

ConcatDataset::Place ConcatDataset::place_of(int64_t index) const {
  if (index < 0 || index >= size())
    throw Error("data", fmt::format("there is no example {}; the data set has {}", index, size()));
  const auto dataset = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  return {.dataset = dataset, .index = index - (dataset == 0 ? 0 : ends_[dataset - 1])};
}

Batch ConcatDataset::get(int64_t index, Generator& generator) const {
  const Place place = place_of(index);
  Generator of_sample = generator_of(place.dataset, generator).for_sample(place.index);
  return datasets_[place.dataset]->get(place.index, of_sample);
}

Batch ConcatDataset::get_batch(std::span<const int64_t> indices, Generator& generator) const {
  struct Part {
    std::vector<int64_t> indices;
    std::vector<int64_t> rows;
  };
  std::vector<Part> parts(datasets_.size());
  for (size_t row = 0; row < indices.size(); ++row) {
    const Place place = place_of(indices[row]);
    parts[place.dataset].indices.push_back(place.index);
    parts[place.dataset].rows.push_back(static_cast<int64_t>(row));
  }
  const auto used = std::count_if(parts.begin(), parts.end(), [](const Part& part) { return !part.rows.empty(); });
  if (used > 1 && collate()) return Dataset::get_batch(indices, generator);

  Batch batch;
  std::optional<std::pair<size_t, Batch>> first;
  for (size_t dataset = 0; dataset < datasets_.size(); ++dataset) {
    const Part& part = parts[dataset];
    if (part.rows.empty()) continue;
    Generator of_part = generator_of(dataset, generator);
    Batch examples = datasets_[dataset]->get_batch(part.indices, of_part);
    if (used == 1) return examples;
    const at::Tensor rows = at::tensor(part.rows, at::kLong);
    const bool is_first = !first.has_value();
    if (is_first)
      first = {dataset, examples};
    else
      check_alike(first->second, first->first, examples, dataset);
    for (const auto& [name, tensor] : first->second.items()) {
      if (tensor.dim() == 0) {  // of the whole batch
        if (is_first) batch.set(name, tensor);
        continue;
      }
      if (is_first) {
        std::vector<int64_t> shape = tensor.sizes().vec();
        shape[0] = std::ssize(indices);
        batch.set(name, at::empty(shape, tensor.options()));
      }
      batch[name].index_copy_(0, rows.to(tensor.device()), std::as_const(examples)[name]);
    }
  }
  return batch;
}

}  // namespace levin::data
