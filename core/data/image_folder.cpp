#include <levin/core/data/image_folder.h>

#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/data/cache/cached_dataset.h>
#include <levin/core/data/images/image_file.h>
#include <levin/core/data/loader_fields.h>
#include <levin/core/data/transforms/transform_registry.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <utility>

namespace levin::data {

namespace {

bool has_folder(const std::string& root, const std::string& name) {
  std::error_code error;
  return std::filesystem::is_directory(std::filesystem::path(root) / name, error);
}

struct Split {
  std::vector<int64_t> train;
  std::vector<int64_t> validation;
  std::vector<int64_t> test;
};

/// Divides the images of each class in an order drawn from the seed. The parts keep the order of the index.
Split split(const ImageIndex& index, double val_fraction, double test_fraction, uint64_t seed) {
  Split parts;
  size_t begin = 0;
  for (size_t label = 0; label < index.classes.size(); ++label) {
    size_t end = begin;
    while (end < index.labels.size() && index.labels[end] == static_cast<int64_t>(label)) ++end;
    std::vector<int64_t> rows(end - begin);
    std::iota(rows.begin(), rows.end(), static_cast<int64_t>(begin));
    Generator generator(seed, 0, static_cast<int64_t>(label));
    for (size_t i = rows.size(); i > 1; --i)
      std::swap(rows[i - 1], rows[static_cast<size_t>(generator.below(static_cast<int64_t>(i)))]);
    const auto count = static_cast<double>(rows.size());
    const auto tests = static_cast<std::ptrdiff_t>(std::nearbyint(count * test_fraction));
    const auto validations = std::min(static_cast<std::ptrdiff_t>(std::nearbyint(count * val_fraction)),
                                      static_cast<std::ptrdiff_t>(rows.size()) - tests);
    const auto first_validation = rows.begin() + tests;
    const auto first_training = first_validation + validations;
    parts.test.insert(parts.test.end(), rows.begin(), first_validation);
    parts.validation.insert(parts.validation.end(), first_validation, first_training);
    parts.train.insert(parts.train.end(), first_training, rows.end());
    begin = end;
  }
  for (auto* part : {&parts.train, &parts.validation, &parts.test}) std::sort(part->begin(), part->end());
  return parts;
}

std::vector<int64_t> all_rows(const ImageIndex& index) {
  std::vector<int64_t> rows(index.files.size());
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

Transforms without_random(const Transforms& transforms) {
  Transforms kept;
  for (const auto& transform : transforms)
    if (!transform->is_random()) kept.push_back(transform);
  return kept;
}

}  // namespace

void ImageFolderOptions::describe(Schema<ImageFolderOptions>& schema) {
  using O = ImageFolderOptions;
  schema.field("root", &O::root, "folder with train, val and test, or with class folders");
  schema.field("transforms", &O::transforms, "transforms of each training image, in order");
  schema.field("eval_transforms", &O::eval_transforms,
               "transforms of validation, test and prediction; null: `transforms` without random ones");
  schema.field("mix", &O::mix, "mixtures of training images, one of them per batch");
  schema
      .field("label_smoothing", &O::label_smoothing,
             "label smoothing: share of the probability that all classes divide")
      .at_least(0)
      .at_most(1);
  schema.field("dtype", &O::dtype, "type of images that no transform converted: float32 (0 to 1) or uint8",
               {{"float32", ImageType::kFloat32}, {"uint8", ImageType::kUint8}});
  schema.field("val_fraction", &O::val_fraction, "fraction of each class held out for validation, without val")
      .at_least(0)
      .below(1);
  schema.field("test_fraction", &O::test_fraction, "fraction of each class held out for tests, without test")
      .at_least(0)
      .below(1);
  schema.field("split_seed", &O::split_seed, "seed of the images held out");
  describe_sampler_field(schema);
  schema.field("max_pixels", &O::max_pixels, "most pixels of an image; null: 178956970").at_least(1);
  schema.field("index_folder", &O::index_folder,
               "folder for the list of files; null: $XDG_CACHE_HOME/levin or ~/.cache/levin; empty: none");
  describe_cache_field(schema);
  schema.field("paths", &O::paths, "add the names of the files to batches, as texts 'path'");
  describe_loader_fields(schema);
}

ImageFolder::ImageFolder(const Options& options)
    : options_(options),
      transforms_(make_transforms(options.transforms, "data.transforms")),
      mixes_(make_mixes(options.mix, "data.mix")),
      sampling_(make_sampling(options.sampler)) {
  eval_transforms_ = options_.eval_transforms ? make_transforms(*options_.eval_transforms, "data.eval_transforms")
                                              : without_random(transforms_);
  cache_ = make_cache(options_.cache);
  if (options_.root.empty())
    throw ConfigError("data.root is not set; hint: the folder that has a folder of images for each class");
  if (options_.val_fraction + options_.test_fraction >= 1)
    throw ConfigError(fmt::format("data.val_fraction and data.test_fraction must be below 1 together; got {} and {}",
                                  options_.val_fraction, options_.test_fraction));
}

ImageFolder::Index ImageFolder::index(const std::string& split) const {
  const std::string folder = split.empty() ? options_.root : options_.root + "/" + split;
  auto found = std::make_shared<const ImageIndex>(
      index_images(folder, options_.index_folder ? *options_.index_folder : default_index_folder()));
  if (found->num_other_files > 0)
    log::rank_zero_warning_once(fmt::format(
        "ignored {} in {} that no image is named as; valid: names ending in .jpg, .jpeg, .png or .webp, not beginning "
        "with '._'",
        counted(found->num_other_files, "file"), folder));
  return found;
}

// The indices are kept for setup, of this process and of the others on this host.
void ImageFolder::prepare_data() {
  if (!has_folder(options_.root, "train")) {
    index("");
    return;
  }
  for (const char* split : {"train", "val", "test"})
    if (has_folder(options_.root, split)) index(split);
}

void ImageFolder::setup(Stage stage) {
  const bool fits = stage == Stage::kFit || stage == Stage::kValidate;
  if (fits ? train_ != nullptr : test_ != nullptr) return;
  const bool has_splits = has_folder(options_.root, "train");
  const bool has_val = has_splits && has_folder(options_.root, "val");
  const bool has_test = has_splits && has_folder(options_.root, "test");
  const Index train = index(has_splits ? "train" : "");
  classes_ = train->classes;
  const Split parts =
      split(*train, has_val ? 0 : options_.val_fraction, has_test ? 0 : options_.test_fraction, options_.split_seed);
  const auto held_out = [&](const char* name) {
    const Index found = index(name);
    if (found->classes != classes_)
      throw Error("data", fmt::format("the folders of {0}/{1} are not those of {0}/train; got {2}; valid: {3}",
                                      options_.root, name, join(found->classes), join(classes_)));
    return files(found, all_rows(*found), false);
  };
  if (fits) {
    train_ = files(train, parts.train, true);
    if (sampling_ != nullptr) train_images_ = std::make_shared<ImageFiles>(train, parts.train, ImageFilesOptions{});
    if (train_->size() == 0) throw Error("data", fmt::format("no image of {} is left for training", options_.root));
    if (!mixes_.empty() || options_.label_smoothing > 0)
      mixed_train_ = std::make_shared<MixedDataset>(
          train_, MixedDatasetOptions{.mixes = mixes_,
                                      .num_classes = static_cast<int64_t>(classes_.size()),
                                      .label_smoothing = options_.label_smoothing});
    if (has_val)
      validation_ = held_out("val");
    else if (!parts.validation.empty())
      validation_ = files(train, parts.validation, false);
  } else if (has_test) {
    test_ = held_out("test");
  } else if (!parts.test.empty()) {
    test_ = files(train, parts.test, false);
  }
}

ImageFolder::Images ImageFolder::files(const Index& index, std::vector<int64_t> rows, bool training) const {
  const bool keep_bytes = options_.dtype == ImageType::kUint8;
  ImageFilesOptions options{.transforms = training ? transforms_ : eval_transforms_,
                            .max_pixels = options_.max_pixels.value_or(kMaxImagePixels),
                            .paths = options_.paths,
                            .keep_bytes = keep_bytes};
  if (cache_ == nullptr) return std::make_shared<ImageFiles>(index, std::move(rows), std::move(options));
  const CachedTransforms transforms(options.transforms);
  options.transforms = transforms.before;
  options.keep_bytes = true;
  return cached_and_transformed(std::make_shared<const ImageFiles>(index, std::move(rows), std::move(options)), cache_,
                                transforms, keep_bytes);
}

DataLoader ImageFolder::train_dataloader() {
  if (train_ == nullptr) return {};
  return sampled_loader(
      mixed_train_ != nullptr ? Images(mixed_train_) : train_, training_loader_options(options_), sampling_.get(),
      [this](const std::string& name) { return name == "label" ? train_images_->labels() : at::Tensor(); });
}

Batch ImageFolder::on_after_batch_transfer(Batch batch, int64_t /*dataloader_idx*/) {
  return mixed_train_ != nullptr ? mixed_train_->finish(std::move(batch)) : batch;
}

DataLoader ImageFolder::evaluation_loader(const Images& images) const {
  return images == nullptr ? DataLoader() : DataLoader(images, evaluation_loader_options(options_));
}

DataLoaders ImageFolder::val_dataloader() { return evaluation_loader(validation_); }
DataLoaders ImageFolder::test_dataloader() { return evaluation_loader(test_); }
DataLoaders ImageFolder::predict_dataloader() { return evaluation_loader(test_); }

}  // namespace levin::data
