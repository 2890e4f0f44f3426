#include <levin/core/data/image_data_module.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <utility>

namespace levin::data {

void ImageDataModule::setup(Stage stage) {
  ByteImagesOptions unchanged = settings_.images;
  unchanged.flip = false;
  unchanged.max_shift = 0;

  if ((stage == Stage::kFit || stage == Stage::kValidate) && train_ == nullptr) {
    auto [images, labels] = read(true);
    const int64_t train_size = images.size(0) - settings_.val_size;
    if (train_size < 1)
      throw Error("data", fmt::format("val_size must be below the number of training images, {}; got {}",
                                      images.size(0), settings_.val_size));
    train_ =
        std::make_shared<ByteImages>(images.slice(0, 0, train_size), labels.slice(0, 0, train_size), settings_.images);
    if (settings_.val_size > 0)
      validation_ = std::make_shared<ByteImages>(images.slice(0, train_size), labels.slice(0, train_size), unchanged);
  }
  if ((stage == Stage::kTest || stage == Stage::kPredict) && test_ == nullptr) {
    auto [images, labels] = read(false);
    test_ = std::make_shared<ByteImages>(std::move(images), std::move(labels), unchanged);
  }
}

DataLoader ImageDataModule::train_dataloader() {
  if (train_ == nullptr) return {};
  return sampled_loader(train_, settings_.loader, settings_.sampling.get(),
                        [this](const std::string& name) { return name == "label" ? train_->labels() : at::Tensor(); });
}

DataLoaders ImageDataModule::val_dataloader() { return evaluation_loader(validation_); }
DataLoaders ImageDataModule::test_dataloader() { return evaluation_loader(test_); }
DataLoaders ImageDataModule::predict_dataloader() { return evaluation_loader(test_); }

DataLoader ImageDataModule::evaluation_loader(const std::shared_ptr<const ByteImages>& images) const {
  if (images == nullptr) return {};
  auto options = settings_.loader;
  options.shuffle = false;
  options.drop_last = false;
  return DataLoader(images, options);
}

}  // namespace levin::data
