#include <levin/core/data/numpy_arrays.h>

#include <levin/core/base/error.h>
#include <levin/core/data/arrays/numpy_file.h>
#include <levin/core/data/loader_fields.h>
#include <levin/core/data/read_column.h>
#include <levin/core/data/row_split.h>
#include <levin/core/data/subset.h>
#include <levin/core/data/tensor_dataset.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace levin::data {

namespace {

std::shared_ptr<const Dataset> open_arrays(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  Batch arrays;
  if (fs::is_directory(path, ignored)) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path, ignored))
      if (entry.path().extension() == ".npy" && !entry.path().filename().string().starts_with("._"))
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) arrays.set(file.stem().string(), map_npy(file.string()));
    if (arrays.empty()) throw Error("data", fmt::format("the folder {} has no .npy file", path));
  } else if (path.ends_with(".npy")) {
    arrays.set(fs::path(path).stem().string(), map_npy(path));
  } else {
    arrays = read_npz(path);
  }
  for (auto& [name, array] : arrays.items()) {
    // LibTorch has few operators for these.
    if (array.scalar_type() == at::kUInt16) array = array.to(at::kInt);
    if (array.scalar_type() == at::kUInt32) array = array.to(at::kLong);
    if (array.scalar_type() == at::kUInt64) {
      array = array.to(at::kLong);
      if (array.numel() > 0 && array.min().item<int64_t>() < 0)
        throw Error("data", fmt::format("the array '{}' of {} has numbers above 2^63 - 1, which int64 does not hold; "
                                        "hint: hashes fit as `array.view(numpy.int64)`",
                                        name, path));
    }
    if (array.dim() == 0)
      throw Error("data",
                  fmt::format("the array '{}' of {} is a single value; valid: arrays whose first dimension counts "
                              "the examples",
                              name, path));
    if (array.size(0) != arrays.size())
      throw Error("data", fmt::format("the arrays of {} disagree on the number of examples: '{}' has {}, '{}' {}", path,
                                      arrays.items().front().first, arrays.size(), name, array.size(0)));
  }
  if (arrays.size() == 0) throw Error("data", fmt::format("the arrays of {} have no examples", path));
  return std::make_shared<TensorDataset>(std::move(arrays));
}

}  // namespace

void NumpyArraysOptions::describe(Schema<NumpyArraysOptions>& schema) {
  using O = NumpyArraysOptions;
  schema.field("path", &O::path, "training examples: an .npz file, an .npy file or a folder");
  schema.field("val_path", &O::val_path, "arrays of validation; null: val_fraction of the training examples");
  schema.field("test_path", &O::test_path, "arrays of tests; null: test_fraction of the training examples");
  schema.field("val_fraction", &O::val_fraction, "fraction of the examples held out for validation, without val_path")
      .at_least(0)
      .below(1);
  schema.field("test_fraction", &O::test_fraction, "fraction of the examples held out for tests, without test_path")
      .at_least(0)
      .below(1);
  schema.field("split_seed", &O::split_seed, "seed of the examples held out");
  schema.field("stratify", &O::stratify, "array of classes to stratify the parts by; null: none");
  describe_sampler_field(schema);
  describe_loader_fields(schema);
}

NumpyArrays::NumpyArrays(const Options& options) : options_(options), sampling_(make_sampling(options.sampler)) {
  if (options_.path.empty()) throw ConfigError("data.path is not set; hint: an .npz file, or a folder of .npy files");
  if (options_.val_fraction + options_.test_fraction >= 1)
    throw ConfigError(fmt::format("data.val_fraction and data.test_fraction must be below 1 together; got {} and {}",
                                  options_.val_fraction, options_.test_fraction));
}

void NumpyArrays::setup(Stage stage) {
  const bool fits = stage == Stage::kFit || stage == Stage::kValidate;
  if (fits ? train_ != nullptr : test_ != nullptr) return;
  if (!fits && options_.test_path) {
    test_ = open_arrays(*options_.test_path);
    return;
  }
  const Examples all = open_arrays(options_.path);
  const double val_fraction = options_.val_path ? 0 : options_.val_fraction;
  const double test_fraction = options_.test_path ? 0 : options_.test_fraction;
  RowSplit parts = options_.stratify
                       ? split_rows_by_class(to_labels(read_column(*all, *options_.stratify), *options_.stratify),
                                             val_fraction, test_fraction, options_.split_seed)
                       : split_rows(all->size(), val_fraction, test_fraction, options_.split_seed);
  const auto select = [&](std::vector<int64_t> rows) -> Examples {
    if (rows.empty()) return nullptr;
    return std::make_shared<Subset>(all, std::move(rows));
  };
  if (!fits) {
    test_ = select(std::move(parts.test));
    return;
  }
  train_ = select(std::move(parts.train));
  if (train_ == nullptr) throw Error("data", fmt::format("no example of {} is left for training", options_.path));
  validation_ = options_.val_path ? open_arrays(*options_.val_path) : select(std::move(parts.validation));
}

DataLoader NumpyArrays::train_dataloader() {
  if (train_ == nullptr) return {};
  return sampled_loader(train_, training_loader_options(options_), sampling_.get(),
                        [this](const std::string& name) { return read_column(*train_, name); });
}

DataLoader NumpyArrays::evaluation_loader(const Examples& examples) const {
  return examples == nullptr ? DataLoader() : DataLoader(examples, evaluation_loader_options(options_));
}

DataLoaders NumpyArrays::val_dataloader() { return evaluation_loader(validation_); }
DataLoaders NumpyArrays::test_dataloader() { return evaluation_loader(test_); }
DataLoaders NumpyArrays::predict_dataloader() { return evaluation_loader(test_); }

}  // namespace levin::data
