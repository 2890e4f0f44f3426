#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
#include <levin/core/data/cache/cache_registry.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/shards/tar_samples.h>
#include <levin/core/data/transforms/value_transforms.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

/// Options of TarShards, explained in describe().
struct TarShardsOptions {
  std::vector<std::string> shards = {};
  std::vector<std::string> val_shards = {};
  std::vector<std::string> test_shards = {};
  std::map<std::string, std::string> fields = TarSamplesOptions().fields;
  int64_t shuffle_buffer = 1000;
  std::vector<Spec<Transform>> transforms = {};
  std::optional<std::vector<Spec<Transform>>> eval_transforms = {};
  ImageType dtype = ImageType::kFloat32;
  std::optional<int64_t> num_classes = {};
  std::optional<int64_t> max_pixels = {};
  std::optional<Spec<ExampleCache>> cache = {};
  int64_t batch_size = 64;
  std::optional<int64_t> global_batch_size = {};
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;
  bool shuffle = true;
  bool drop_last = false;
  bool pin_memory = false;
  double timeout = 0;
  bool persistent_workers = true;
  OnError on_error = OnError::kRaise;

  static void describe(Schema<TarShardsOptions>& schema);
};

/// Samples of tar files as WebDataset lays them out; batches: see TarSamples. Only the headers of the files are read
/// ahead. Training visits shards in an order drawn from seed and epoch, and their samples through a buffer, see
/// ShardSampler; so the order depends neither on ranks nor on workers, who divide each batch.
class TarShards : public DataModule {
 public:
  using Options = TarShardsOptions;
  explicit TarShards(const Options& options);

  void setup(Stage stage) override;
  DataLoader train_dataloader() override;
  DataLoaders val_dataloader() override;
  DataLoaders test_dataloader() override;
  DataLoaders predict_dataloader() override;

 private:
  using Samples = std::shared_ptr<const Dataset>;
  struct OpenShards {
    Samples samples;
    std::vector<int64_t> sizes;  ///< samples of each file
  };
  OpenShards open(const std::vector<std::string>& shards, const Transforms& transforms) const;
  DataLoader evaluation_loader(const Samples& samples) const;

  Options options_;
  Transforms transforms_;
  Transforms eval_transforms_;
  std::shared_ptr<ExampleCache> cache_;  ///< nullptr: none
  OpenShards train_;
  Samples validation_;
  Samples test_;
};

/// Returns the files that these name, in order: a file, the .tar files in a folder by name, or files with numbers in
/// braces, train-{000..099}.tar. Throws levin::Error where there is none.
std::vector<std::string> find_shards(const std::vector<std::string>& names);

}  // namespace levin::data
