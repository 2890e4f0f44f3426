#pragma once

#include <levin/core/data/cache/example_cache.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/transformed_dataset.h>
#include <levin/core/data/transforms/transform.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace levin::data {

/// The examples of another data set, each read once and kept:
///
///     auto decoded = std::make_shared<CachedDataset>(photographs, make<MemoryCache>(), "photographs");
///     auto augmented = std::make_shared<TransformedDataset>(decoded, random_transforms);
///
/// What the other data set draws at random is drawn once, from a stream of the example alone, so that an example is the
/// same whether it was kept or not. Put what is random behind the cache.
class CachedDataset final : public Dataset {
 public:
  /// Says what an example is made of.
  using KeyFunction = std::function<ExampleKey(int64_t index)>;

  CachedDataset(std::shared_ptr<const Dataset> dataset, std::shared_ptr<ExampleCache> cache, KeyFunction key);
  /// `name`: of the data set, other than of all that share the cache. `version`: to be changed when its values do.
  CachedDataset(std::shared_ptr<const Dataset> dataset, std::shared_ptr<ExampleCache> cache, const std::string& name,
                const std::string& version = "");

  int64_t size() const override { return dataset_->size(); }
  /// Throws what the data set throws, and levin::Error for tensors that are not dense or not on the CPU.
  Batch get(int64_t index, Generator& generator) const override;
  CollateFunction collate() const override { return dataset_->collate(); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::shared_ptr<ExampleCache> cache_;
  KeyFunction key_;
};

/// A list of transforms cut in two at the first one that is random, or of which nobody knows how it was made: what
/// comes before a cache and what comes after it.
struct CachedTransforms {
  explicit CachedTransforms(const Transforms& transforms);

  Transforms before = {};
  Transforms after = {};
  std::string version = {};  ///< names and options of those before
};

/// Returns the examples of `dataset`, an ImageFiles or TarSamples with the transforms before the cache, kept in it and
/// then transformed by those after it. `keep_bytes`: see TransformedDataset.
template <class Files>
std::shared_ptr<const Dataset> cached_and_transformed(std::shared_ptr<const Files> files,
                                                      std::shared_ptr<ExampleCache> cache,
                                                      const CachedTransforms& transforms, bool keep_bytes) {
  auto key = [files, version = transforms.version](int64_t index) {
    ExampleKey key = files->cache_key(index);
    key.version += version;
    return key;
  };
  auto cached = std::make_shared<CachedDataset>(files, std::move(cache), std::move(key));
  return std::make_shared<TransformedDataset>(std::move(cached), transforms.after, keep_bytes);
}

}  // namespace levin::data
