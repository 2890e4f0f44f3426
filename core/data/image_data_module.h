#pragma once

#include <levin/core/data/byte_images.h>
#include <levin/core/data/data_module.h>
#include <levin/core/data/sampling.h>

#include <cstdint>
#include <memory>

namespace levin::data {

/// Base of the image data modules: the last `val_size` training images are held out for validation, test and prediction
/// use the test images, and only training images are augmented.
class ImageDataModule : public DataModule {
 public:
  void setup(Stage stage) override;
  DataLoader train_dataloader() override;
  DataLoaders val_dataloader() override;
  DataLoaders test_dataloader() override;
  DataLoaders predict_dataloader() override;

 protected:
  struct Settings {
    DataLoaderOptions loader = {};                  ///< shuffle says whether training shuffles
    std::shared_ptr<const Sampling> sampling = {};  ///< of training; nullptr: as shuffle says
    int64_t val_size = 0;
    ByteImagesOptions images = {};  ///< of training; the other stages do without flip and shift
  };
  explicit ImageDataModule(Settings settings) : settings_(std::move(settings)) {}

  struct Images {
    at::Tensor images = {};  ///< uint8 [N, C, H, W]
    at::Tensor labels = {};  ///< int64 [N]
  };
  /// Reads the training or the test images from their files.
  virtual Images read(bool training) const = 0;

 private:
  DataLoader evaluation_loader(const std::shared_ptr<const ByteImages>& images) const;

  Settings settings_;
  std::shared_ptr<const ByteImages> train_;
  std::shared_ptr<const ByteImages> validation_;
  std::shared_ptr<const ByteImages> test_;
};

}  // namespace levin::data
