#include <levin/core/data/transforms/value_transforms.h>

#include <levin/core/base/error.h>
#include <levin/core/data/transforms/image_operations.h>
#include <levin/core/data/transforms/transform_options.h>

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>

namespace levin::data {

void ToDtypeOptions::describe(Schema<ToDtypeOptions>& schema) {
  schema.field("dtype", &ToDtypeOptions::dtype, "type of the result: float32 (0 to 1) or uint8 (0 to 255)",
               {{"float32", ImageType::kFloat32}, {"uint8", ImageType::kUint8}});
}

at::Tensor ToDtype::transform(const at::Tensor& image, Generator& /*generator*/) const {
  return operations::to_dtype(image, type_ == ImageType::kFloat32 ? at::kFloat : at::kByte);
}

void NormalizeOptions::describe(Schema<NormalizeOptions>& schema) {
  using O = NormalizeOptions;
  schema.field("mean", &O::mean, "mean of each channel, on the scale 0 to 1");
  schema.field("std", &O::std, "divisor of each channel, on the scale 0 to 1")
      .require("numbers above 0", [](const std::vector<double>& values) {
        return std::all_of(values.begin(), values.end(), [](double value) { return value > 0; });
      });
}

at::Tensor Normalize::transform(const at::Tensor& image, Generator& /*generator*/) const {
  return operations::normalize(image, options_.mean, options_.std);
}

void OneHotOptions::describe(Schema<OneHotOptions>& schema) {
  using O = OneHotOptions;
  schema.field("num_classes", &O::num_classes, "classes").at_least(1).at_most(int64_t{1} << 31);
  schema.field("label_smoothing", &O::label_smoothing, "part of the probability that all classes share")
      .at_least(0)
      .at_most(1);
}

OneHot::OneHot(const Options& options) : options_(checked(options, "one_hot")) {}

void OneHot::apply(Batch& example, Generator& /*generator*/) const {
  const Batch& given = example;
  const at::Tensor* label = given.find("label");
  if (label == nullptr || label->dim() != 0 || label->is_floating_point())
    throw Error("data", "one_hot needs a tensor 'label' that is one whole number");
  const auto number = label->item<int64_t>();
  if (number < 0 || number >= options_.num_classes)
    throw Error("data", fmt::format("the label {} is outside of the classes; valid: 0 to {}", number,
                                    options_.num_classes - 1));
  const double shared = options_.label_smoothing / static_cast<double>(options_.num_classes);
  at::Tensor row = at::full({options_.num_classes}, shared, at::kFloat);
  row.mutable_data_ptr<float>()[number] = static_cast<float>(1 - options_.label_smoothing + shared);
  example["label"] = row;
}

}  // namespace levin::data
