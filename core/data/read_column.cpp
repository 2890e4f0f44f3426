#include <levin/core/data/read_column.h>

#include <levin/core/base/error.h>
#include <levin/core/data/concat_dataset.h>
#include <levin/core/data/subset.h>
#include <levin/core/data/tensor_dataset.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace levin::data {

namespace {

constexpr int64_t kReadAtOnce = 256;

}  // namespace

at::Tensor read_column(const Dataset& dataset, const std::string& name) {
  if (const auto* tensors = dynamic_cast<const TensorDataset*>(&dataset)) return tensors->tensors()[name];
  if (const auto* subset = dynamic_cast<const Subset*>(&dataset)) {
    const at::Tensor whole = read_column(*subset->dataset(), name);
    return whole.index_select(0, at::tensor(subset->indices(), at::kLong).to(whole.device()));
  }
  std::vector<at::Tensor> parts;
  if (const auto* several = dynamic_cast<const ConcatDataset*>(&dataset)) {
    for (const auto& part : several->datasets())
      if (part->size() > 0) parts.push_back(read_column(*part, name));
  } else {
    Generator generator(0, 0);
    std::vector<int64_t> indices;
    for (int64_t begin = 0; begin < dataset.size(); begin += kReadAtOnce) {
      indices.resize(static_cast<size_t>(std::min(kReadAtOnce, dataset.size() - begin)));
      std::iota(indices.begin(), indices.end(), begin);
      const Batch examples = dataset.get_batch(indices, generator);
      parts.push_back(examples[name].clone());
    }
  }
  if (parts.empty()) throw Error("data", fmt::format("the tensor '{}' of an empty data set was asked for", name));
  return at::cat(parts);
}

std::vector<int64_t> to_labels(const at::Tensor& values, const std::string& name) {
  const auto fail = [&](const std::string& got) {
    throw Error("data", fmt::format("'{}' must have the number of a class for each example, [N] whole numbers; got {}",
                                    name, got));
  };
  if (values.dim() != 1 || values.is_complex())
    fail(fmt::format("{} {}", c10::str(values.sizes()), c10::toString(values.scalar_type())));
  const at::Tensor labels = values.to(at::kCPU, at::kLong).contiguous();
  if (values.is_floating_point() && !labels.to(at::kDouble).equal(values.to(at::kCPU, at::kDouble))) fail("fractions");
  const auto* begin = labels.const_data_ptr<int64_t>();
  std::vector<int64_t> numbers(begin, begin + labels.numel());
  if (const auto least = std::min_element(numbers.begin(), numbers.end()); least != numbers.end() && *least < 0)
    fail(std::to_string(*least));
  return numbers;
}

}  // namespace levin::data
