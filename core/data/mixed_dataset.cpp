#include <levin/core/data/mixed_dataset.h>

#include <levin/core/base/error.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace levin::data {

namespace {

constexpr std::string_view kPrefix = "mix.";
constexpr const char* kMark = "mix.batch";  ///< in every batch that was fetched here
constexpr const char* kImageBefore = "mix.image";
constexpr const char* kLabelBefore = "mix.label";

std::string prefix_of(size_t mix) { return fmt::format("{}{}.", kPrefix, mix); }

/// The numbers that a batch has of one mixture, under their own names.
Batch numbers_of(const Batch& batch, const std::string& prefix) {
  Batch numbers;
  for (const auto& [name, tensor] : batch.items())
    if (name.starts_with(prefix)) numbers.set(name.substr(prefix.size()), tensor);
  return numbers;
}

/// Each example's neighbour: the one before it, for the first one `before`, or the last where there is none.
at::Tensor neighbours(const at::Tensor& values, const at::Tensor* before) {
  return before == nullptr ? values.roll(1, 0) : at::cat({*before, values.narrow(0, 0, values.size(0) - 1)});
}

}  // namespace

MixedDataset::MixedDataset(std::shared_ptr<const Dataset> dataset, MixedDatasetOptions options)
    : dataset_(std::move(dataset)), options_(std::move(options)) {
  if (dataset_ == nullptr) throw Error("data", "a mixed data set was given no data set (a null pointer)");
  if (options_.num_classes < 1 || !(options_.label_smoothing >= 0 && options_.label_smoothing <= 1))
    throw Error("data", fmt::format("num_classes is {} and label_smoothing {}; valid: at least 1, 0 to 1",
                                    options_.num_classes, options_.label_smoothing));
}

void MixedDataset::check(const Batch& batch) const {
  const at::Tensor& image = batch["image"];
  if (!options_.mixes.empty() && (image.dim() != 4 || !image.is_floating_point()))
    throw Error("data", fmt::format("images are mixed that are floating [N, channels, height, width]; got {} {}; hint: "
                                    "dtype: float32, or the transform normalize",
                                    c10::toString(image.scalar_type()), c10::str(image.sizes())));
  const at::Tensor& label = batch["label"];
  if (label.is_floating_point()) {
    if (label.dim() != 2 || label.size(1) != options_.num_classes || options_.label_smoothing > 0)
      throw Error("data", fmt::format("labels that are probabilities must be [N, {}], without label_smoothing; got {}",
                                      options_.num_classes, c10::str(label.sizes())));
    return;
  }
  if (label.dim() != 1)
    throw Error("data", fmt::format("labels must be numbers of classes, [N]; got {}", c10::str(label.sizes())));
  if (label.numel() == 0) return;
  const auto least = label.min().item<int64_t>();
  const auto greatest = label.max().item<int64_t>();
  if (least < 0 || greatest >= options_.num_classes)
    throw Error("data", fmt::format("the label {} is outside of the classes; valid: 0 to {}",
                                    least < 0 ? least : greatest, options_.num_classes - 1));
}

Batch MixedDataset::get_batch(std::span<const int64_t> indices, Generator& generator) const {
  return get_part(indices, std::nullopt, generator, generator);
}

Batch MixedDataset::get_part(std::span<const int64_t> indices, std::optional<int64_t> before, Generator& generator,
                             Generator& common) const {
  const Batch fetched = dataset_->get_batch(indices, generator);
  check(fetched);
  Batch batch = fetched;
  batch.set(kMark, at::scalar_tensor(1, at::kLong));
  if (options_.mixes.empty()) return batch;
  const auto chosen = static_cast<size_t>(common.below(static_cast<int64_t>(options_.mixes.size())));
  const at::Tensor& image = fetched["image"];
  const Batch numbers = options_.mixes[chosen]->draw(image.size(2), image.size(3), common);
  for (const auto& [name, number] : numbers.items()) batch.set(prefix_of(chosen) + name, number);
  if (before) {
    const Batch neighbour = dataset_->get_batch({&*before, 1}, generator);
    check(neighbour);
    batch.set(kImageBefore, neighbour["image"]);
    batch.set(kLabelBefore, neighbour["label"]);
  }
  return batch;
}

at::Tensor MixedDataset::probabilities(const at::Tensor& label, at::ScalarType type) const {
  if (label.is_floating_point()) return label.to(type);
  const double shared = options_.label_smoothing / static_cast<double>(options_.num_classes);
  return at::full({label.size(0), options_.num_classes}, shared, label.options().dtype(type))
      .scatter_(1, label.to(at::kLong).unsqueeze(1), 1 - options_.label_smoothing + shared);
}

Batch MixedDataset::finish(Batch batch) const {
  const Batch& given = batch;
  if (given.find(kMark) == nullptr) return batch;
  Batch result = given;
  std::erase_if(result.items(), [](const Batch::Item& item) { return item.first.starts_with(kPrefix); });
  const at::Tensor& image = given["image"];
  // Not in the type of half precision, in which the sum of a row would not be 1.
  const at::ScalarType type = image.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor label = probabilities(given["label"], type);
  for (size_t i = 0; i < options_.mixes.size(); ++i) {
    const Batch numbers = numbers_of(given, prefix_of(i));
    if (numbers.empty()) continue;
    result["image"] = options_.mixes[i]->mix(image, neighbours(image, given.find(kImageBefore)), numbers);
    const at::Tensor* label_before = given.find(kLabelBefore);
    const at::Tensor before = label_before == nullptr ? at::Tensor() : probabilities(*label_before, type);
    label = weighted_mean(label, neighbours(label, label_before == nullptr ? nullptr : &before),
                          fraction_of(numbers["weight"]));
  }
  result["label"] = label;
  return result;
}

}  // namespace levin::data
