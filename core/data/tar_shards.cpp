#include <levin/core/data/tar_shards.h>

#include <levin/core/base/error.h>
#include <levin/core/data/cache/cached_dataset.h>
#include <levin/core/data/loader_fields.h>
#include <levin/core/data/shards/shard_sampler.h>
#include <levin/core/data/transforms/transform_registry.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

namespace levin::data {

namespace {

constexpr int64_t kMostShards = 1'000'000;

/// The names that braces stand for; the name alone where it has none.
std::vector<std::string> expand_braces(const std::string& name) {
  const size_t open = name.find('{');
  const size_t dots = name.find("..", open == std::string::npos ? name.size() : open);
  const size_t close = name.find('}', dots == std::string::npos ? name.size() : dots);
  if (close == std::string::npos) return {name};
  const std::string first = name.substr(open + 1, dots - open - 1);
  const std::string last = name.substr(dots + 2, close - dots - 2);
  const auto to_number = [&](const std::string& digits) {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0)
      throw Error("data", fmt::format("'{}' has no numbers in its braces; hint: train-{{000..099}}.tar", name));
    return value;
  };
  const int64_t begin = to_number(first);
  const int64_t end = to_number(last);
  if (end < begin || end - begin >= kMostShards)
    throw Error("data", fmt::format("'{}' counts from {} to {}; valid: upwards, {} files at most", name, begin, end,
                                    kMostShards));
  std::vector<std::string> names;
  for (int64_t number = begin; number <= end; ++number)
    for (const std::string& rest : expand_braces(name.substr(close + 1)))
      names.push_back(fmt::format("{}{:0{}}{}", name.substr(0, open), number, first.size(), rest));
  return names;
}

}  // namespace

std::vector<std::string> find_shards(const std::vector<std::string>& names) {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  for (const std::string& name : names) {
    std::error_code ignored;
    if (!fs::is_directory(name, ignored)) {
      for (std::string& file : expand_braces(name)) found.push_back(std::move(file));
      continue;
    }
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(name, ignored))
      if (entry.path().extension() == ".tar" && !entry.path().filename().string().starts_with("._"))
        files.push_back(entry.path().string());
    if (files.empty()) throw Error("data", fmt::format("the folder {} has no .tar file", name));
    std::sort(files.begin(), files.end());
    found.insert(found.end(), files.begin(), files.end());
  }
  return found;
}

void TarShardsOptions::describe(Schema<TarShardsOptions>& schema) {
  using O = TarShardsOptions;
  schema.field("shards", &O::shards, "tar files of training: files, folders of .tar files, or train-{000..099}.tar");
  schema.field("val_shards", &O::val_shards, "shards of validation; empty: none");
  schema.field("test_shards", &O::test_shards, "shards of tests and prediction; empty: none");
  schema.field("fields", &O::fields, "tensors of a batch, and the file endings they are read from");
  schema.field("shuffle_buffer", &O::shuffle_buffer, "size of the shuffle buffer (samples); 1: a shard's order")
      .at_least(1);
  schema.field("transforms", &O::transforms, "transforms of each training sample, in order");
  schema.field("eval_transforms", &O::eval_transforms,
               "transforms of validation, test and prediction; null: `transforms` without random ones");
  schema.field("dtype", &O::dtype, "type of images that no transform converted: float32 (0 to 1) or uint8",
               {{"float32", ImageType::kFloat32}, {"uint8", ImageType::kUint8}});
  schema.field("num_classes", &O::num_classes, "number of classes, checked against .cls; null: not checked")
      .at_least(1);
  schema.field("max_pixels", &O::max_pixels, "most pixels of an image; null: 178956970").at_least(1);
  describe_cache_field(schema);
  describe_loader_fields(schema);
}

TarShards::TarShards(const Options& options)
    : options_(options),
      transforms_(make_transforms(options.transforms, "data.transforms")),
      cache_(make_cache(options.cache)) {
  if (options_.shards.empty() && options_.val_shards.empty() && options_.test_shards.empty())
    throw ConfigError("data.shards is not set; hint: [train-{000..099}.tar], or a folder of tar files");
  if (options_.eval_transforms) {
    eval_transforms_ = make_transforms(*options_.eval_transforms, "data.eval_transforms");
  } else {
    for (const auto& transform : transforms_)
      if (!transform->is_random()) eval_transforms_.push_back(transform);
  }
}

TarShards::OpenShards TarShards::open(const std::vector<std::string>& shards, const Transforms& transforms) const {
  if (shards.empty()) return {};
  const bool keep_bytes = options_.dtype == ImageType::kUint8;
  TarSamplesOptions options{.fields = options_.fields,
                            .transforms = transforms,
                            .keep_bytes = keep_bytes,
                            .max_pixels = options_.max_pixels.value_or(kMaxImagePixels),
                            .num_classes = options_.num_classes};
  if (cache_ == nullptr) {
    const auto samples = std::make_shared<const TarSamples>(find_shards(shards), std::move(options));
    return {samples, samples->shard_sizes()};
  }
  const CachedTransforms parts(transforms);
  options.transforms = parts.before;
  options.keep_bytes = true;
  const auto samples = std::make_shared<const TarSamples>(find_shards(shards), std::move(options));
  return {cached_and_transformed(samples, cache_, parts, keep_bytes), samples->shard_sizes()};
}

void TarShards::setup(Stage stage) {
  if (stage == Stage::kFit && train_.samples == nullptr) train_ = open(options_.shards, transforms_);
  if ((stage == Stage::kFit || stage == Stage::kValidate) && validation_ == nullptr)
    validation_ = open(options_.val_shards, eval_transforms_).samples;
  if ((stage == Stage::kTest || stage == Stage::kPredict) && test_ == nullptr)
    test_ = open(options_.test_shards, eval_transforms_).samples;
}

DataLoader TarShards::train_dataloader() {
  if (train_.samples == nullptr) return {};
  DataLoaderOptions loader = training_loader_options(options_);
  loader.shuffle = false;  // its sampler shuffles
  if (!options_.shuffle) return DataLoader(train_.samples, loader);
  return DataLoader(train_.samples, loader, std::make_shared<ShardSampler>(train_.sizes, options_.shuffle_buffer));
}

DataLoader TarShards::evaluation_loader(const Samples& samples) const {
  return samples == nullptr ? DataLoader() : DataLoader(samples, evaluation_loader_options(options_));
}

DataLoaders TarShards::val_dataloader() { return evaluation_loader(validation_); }
DataLoaders TarShards::test_dataloader() { return evaluation_loader(test_); }
DataLoaders TarShards::predict_dataloader() { return evaluation_loader(test_); }

}  // namespace levin::data
