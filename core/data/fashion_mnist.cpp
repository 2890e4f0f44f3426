#include <levin/core/data/fashion_mnist.h>

#include <levin/core/base/error.h>
#include <levin/core/data/idx_file.h>
#include <levin/core/data/loader_fields.h>

#include <fmt/format.h>

namespace levin::data {

namespace {

constexpr int64_t kFashionShift = 2;

}  // namespace

template <class Defaults>
void MnistLikeOptions<Defaults>::describe(Schema<MnistLikeOptions>& schema) {
  using O = MnistLikeOptions;
  schema.field("root", &O::root, "folder of the four IDX files, compressed by gzip or not");
  schema.field("val_size", &O::val_size, "training images held out for validation, from the end").at_least(0);
  schema.field("augment", &O::augment,
               Defaults::kFlips ? "random mirroring and shifts of training images (up to 2 pixels)"
                                : "shift training images at random by up to 2 pixels");
  schema.field("mean", &O::mean, "mean of the pixels, on the scale 0 to 1");
  schema.field("std", &O::std, "divisor of the pixels").above(0);
  describe_sampler_field(schema);
  describe_loader_fields(schema);
}

template <class Defaults>
MnistLike<Defaults>::MnistLike(const Options& options)
    : ImageDataModule({.loader = training_loader_options(options),
                       .sampling = make_sampling(options.sampler),
                       .val_size = options.val_size,
                       .images = {.mean = {options.mean},
                                  .std = {options.std},
                                  .flip = options.augment && Defaults::kFlips,
                                  .max_shift = options.augment ? kFashionShift : 0}}),
      root_(options.root) {}

template <class Defaults>
ImageDataModule::Images MnistLike<Defaults>::read(bool training) const {
  const std::string part = training ? "train" : "t10k";
  const std::string images_path = find_idx_file(root_, part + "-images-idx3-ubyte", Defaults::kHint);
  const std::string labels_path = find_idx_file(root_, part + "-labels-idx1-ubyte", Defaults::kHint);
  at::Tensor images = read_idx(images_path, 3);
  at::Tensor labels = read_idx(labels_path, 1);
  if (images.size(0) != labels.size(0))
    throw Error("data", fmt::format("{} has {} images but {} has {} labels", images_path, images.size(0), labels_path,
                                    labels.size(0)));
  return {images.unsqueeze(1), labels.to(at::kLong)};
}

template struct MnistLikeOptions<FashionMnistDefaults>;
template struct MnistLikeOptions<MnistDefaults>;
template class MnistLike<FashionMnistDefaults>;
template class MnistLike<MnistDefaults>;

}  // namespace levin::data
