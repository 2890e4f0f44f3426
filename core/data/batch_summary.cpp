#include <levin/core/data/batch_summary.h>

#include <levin/core/base/image_bytes.h>
#include <levin/core/data/image_grid.h>

#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>

namespace levin::data {

namespace {

/// More are no classes.
constexpr int64_t kMostClasses = 1'000'000;

/// The name that Python gives a type.
std::string type_name(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(type);
  }
}

TensorSummary summary_of(const std::string& name, const at::Tensor& tensor) {
  TensorSummary summary{.name = name, .shape = tensor.sizes().vec(), .type = type_name(tensor.scalar_type())};
  if (tensor.is_complex() || tensor.layout() != at::kStrided) return summary;
  at::Tensor values = tensor.detach().cpu().to(at::kDouble).flatten();
  const at::Tensor finite = at::isfinite(values);
  summary.not_finite = values.numel() - finite.sum().item<int64_t>();
  if (summary.not_finite > 0) values = values.masked_select(finite);
  if (values.numel() == 0) return summary;
  summary.min = values.min().item<double>();
  summary.max = values.max().item<double>();
  summary.mean = values.mean().item<double>();
  return summary;
}

/// Numbers of classes, int64 [N] on the CPU; undefined where the batch has none.
at::Tensor classes_of(const Batch& batch) {
  constexpr std::array<const char*, 4> kNames = {"label", "labels", "target", "y"};
  for (const char* name : kNames) {
    const at::Tensor* label = batch.find(name);
    if (label == nullptr || !label->defined() || label->numel() == 0) continue;
    if (label->is_floating_point() && label->dim() == 2 && label->size(1) > 1) return label->detach().argmax(1).cpu();
    if (!at::isIntegralType(label->scalar_type(), /*includeBool=*/true) || label->dim() != 1) continue;
    const at::Tensor numbers = label->detach().cpu().to(at::kLong);
    if (numbers.min().item<int64_t>() >= 0 && numbers.max().item<int64_t>() < kMostClasses) return numbers;
  }
  return {};
}

}  // namespace

std::vector<TensorSummary> summarize(const Batch& batch) {
  const at::NoGradGuard no_grad;
  std::vector<TensorSummary> summaries;
  for (const auto& [name, tensor] : batch.items())
    if (tensor.defined()) summaries.push_back(summary_of(name, tensor));
  return summaries;
}

std::optional<at::Tensor> batch_picture(const Batch& batch, int64_t most_images) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : batch.items()) {
    if (!tensor.defined() || tensor.dim() != 4 || tensor.numel() == 0) continue;
    if (tensor.size(1) != 1 && tensor.size(1) != 3) continue;
    const bool bytes = tensor.scalar_type() == at::kByte;
    if (!bytes && !tensor.is_floating_point()) continue;
    at::Tensor images = tensor.detach().narrow(0, 0, std::min(most_images, tensor.size(0))).cpu();
    if (!bytes) images = images.to(at::kFloat).nan_to_num(0, 0, 0);
    return image_bytes(make_grid(images, {.pad_value = bytes ? 255.0 : 1.0, .normalize = !bytes}));
  }
  return std::nullopt;
}

void ClassCounts::add(const Batch& batch) {
  const at::Tensor classes = classes_of(batch);
  if (!classes.defined()) return;
  const at::Tensor numbers = classes.contiguous();
  const auto* values = numbers.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    const auto number = static_cast<size_t>(values[i]);
    if (number >= counts_.size()) counts_.resize(number + 1);
    ++counts_[number];
  }
}

}  // namespace levin::data
