#include <levin/core/data/cache/cached_dataset.h>

#include <levin/core/base/error.h>
#include <levin/core/data/cache/example_bytes.h>
#include <levin/core/data/fetch_times.h>

#include <fmt/format.h>

#include <utility>

namespace levin::data {

CachedDataset::CachedDataset(std::shared_ptr<const Dataset> dataset, std::shared_ptr<ExampleCache> cache,
                             KeyFunction key)
    : dataset_(std::move(dataset)), cache_(std::move(cache)), key_(std::move(key)) {
  if (dataset_ == nullptr || cache_ == nullptr || key_ == nullptr)
    throw Error("data",
                "a cached data set needs a data set, a cache and what its examples are made of; got a null "
                "pointer");
}

CachedDataset::CachedDataset(std::shared_ptr<const Dataset> dataset, std::shared_ptr<ExampleCache> cache,
                             const std::string& name, const std::string& version)
    : CachedDataset(std::move(dataset), std::move(cache), [name, version](int64_t index) {
        return ExampleKey{.source = fmt::format("{}/{}", name, index), .version = version};
      }) {}

Batch CachedDataset::get(int64_t index, Generator& /*generator*/) const {
  if (index < 0 || index >= size())
    throw Error("data", fmt::format("there is no example {}; the data set has {}", index, size()));
  const ExampleKey key = key_(index);
  {
    const FetchPart part("cache");
    if (auto kept = cache_->find(key)) return std::move(*kept);
  }
  Generator of_example(0, 0, index);
  Batch example = with_dense_memory(dataset_->get(index, of_example));
  const FetchPart part("cache");
  cache_->add(key, example);
  return example;
}

CachedTransforms::CachedTransforms(const Transforms& transforms) {
  for (const auto& transform : transforms) {
    if (!after.empty() || transform->is_random() || !transform->can_rebuild()) {
      after.push_back(transform);
      continue;
    }
    before.push_back(transform);
    version += fmt::format("{} {}\n", transform->init_name(), transform->init_options().to_flow());
  }
}

}  // namespace levin::data
