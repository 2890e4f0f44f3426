#include <levin/core/data/tensor_dataset.h>

#include <levin/core/base/error.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {

TensorDataset::TensorDataset(Batch tensors) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) throw Error("data", "a TensorDataset needs at least one tensor");
  for (auto& [name, tensor] : tensors_.items()) {
    if (!tensor.defined() || tensor.dim() == 0)
      throw Error("data",
                  fmt::format("the tensor '{}' of a TensorDataset needs a first dimension that counts examples", name));
    if (tensor.size(0) != tensors_.size())
      throw Error("data",
                  fmt::format("the tensors of a TensorDataset disagree on the number of examples: '{}' has {}, '{}' {}",
                              tensors_.items().front().first, tensors_.size(), name, tensor.size(0)));
    tensor = tensor.detach().contiguous();
  }
  for (const auto& [name, texts] : tensors_.text_items())
    if (std::ssize(texts) != tensors_.size())
      throw Error("data", fmt::format("a TensorDataset of {} has {} texts '{}'; valid: one for each",
                                      counted(tensors_.size(), "example"), texts.size(), name));
}

Batch TensorDataset::get_batch(std::span<const int64_t> indices, Generator& /*generator*/) const {
  at::Tensor rows = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  std::copy(indices.begin(), indices.end(), rows.mutable_data_ptr<int64_t>());
  Batch batch;
  batch.items().reserve(tensors_.items().size());
  for (const auto& [name, tensor] : tensors_.items())
    batch.items().emplace_back(name, tensor.index_select(0, tensor.is_cpu() ? rows : rows.to(tensor.device())));
  for (const auto& [name, texts] : tensors_.text_items()) {
    std::vector<std::string> chosen;
    chosen.reserve(indices.size());
    for (const int64_t index : indices) chosen.push_back(texts[static_cast<size_t>(index)]);
    batch.set_texts(name, std::move(chosen));
  }
  return batch;
}

}  // namespace levin::data
