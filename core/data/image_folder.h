#pragma once

#include <levin/core/base/schema.h>
#include <levin/core/base/spec.h>
#include <levin/core/data/cache/cache_registry.h>
#include <levin/core/data/class_names.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/image_files.h>
#include <levin/core/data/mixed_dataset.h>
#include <levin/core/data/sampling.h>
#include <levin/core/data/transforms/batch_mix.h>
#include <levin/core/data/transforms/transform.h>
#include <levin/core/data/transforms/value_transforms.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin::data {

/// Options of ImageFolder, explained in describe().
struct ImageFolderOptions {
  std::string root = {};
  int64_t batch_size = 64;
  std::optional<int64_t> global_batch_size = {};
  int64_t num_workers = 0;
  int64_t prefetch_factor = 2;
  std::vector<Spec<Transform>> transforms = {};
  std::optional<std::vector<Spec<Transform>>> eval_transforms = {};
  std::vector<Spec<BatchMix>> mix = {};
  double label_smoothing = 0;
  ImageType dtype = ImageType::kFloat32;
  double val_fraction = 0.1;
  double test_fraction = 0;
  uint64_t split_seed = 0;
  std::optional<Spec<Sampling>> sampler = {};
  bool shuffle = true;
  bool drop_last = false;
  bool pin_memory = false;
  double timeout = 0;
  bool persistent_workers = true;
  OnError on_error = OnError::kRaise;
  std::optional<int64_t> max_pixels = {};
  std::optional<std::string> index_folder = {};
  std::optional<Spec<ExampleCache>> cache = {};
  bool paths = false;

  static void describe(Schema<ImageFolderOptions>& schema);
};

/// Images in a folder for each class: `root/train/CLASS/*.jpg`, `root/val`, `root/test`, or `root/CLASS/*.jpg`, of
/// which parts of each class are held out. Batches: see ImageFiles; with `mix` or `label_smoothing` the labels of
/// training are probabilities, float [N, classes].
class ImageFolder : public DataModule, public ClassNames {
 public:
  using Options = ImageFolderOptions;
  explicit ImageFolder(const Options& options);

  void prepare_data() override;
  void setup(Stage stage) override;
  DataLoader train_dataloader() override;
  DataLoaders val_dataloader() override;
  DataLoaders test_dataloader() override;
  DataLoaders predict_dataloader() override;
  Batch on_after_batch_transfer(Batch batch, int64_t dataloader_idx) override;

  /// Returns the names of the classes, in the order of their numbers; known after setup.
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  using Index = std::shared_ptr<const ImageIndex>;
  Index index(const std::string& split) const;
  using Images = std::shared_ptr<const Dataset>;
  Images files(const Index& index, std::vector<int64_t> rows, bool training) const;
  DataLoader evaluation_loader(const Images& images) const;

  Options options_;
  Transforms transforms_;
  Transforms eval_transforms_;
  BatchMixes mixes_;
  std::shared_ptr<ExampleCache> cache_;       ///< nullptr: none
  std::shared_ptr<const Sampling> sampling_;  ///< nullptr: as shuffle says
  std::vector<std::string> classes_;
  Images train_;
  std::shared_ptr<const ImageFiles> train_images_;   ///< as they lie on the disk, for a sampler that asks for labels
  std::shared_ptr<const MixedDataset> mixed_train_;  ///< nullptr: labels stay numbers
  Images validation_;
  Images test_;
};

}  // namespace levin::data
