#include <levin/core/data/tensor_dataset.h>

#include <levin/core/base/error.h>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

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
}

Batch TensorDataset::get_batch(std::span<const int64_t> indices, Generator& /*generator*/) const {
  at::Tensor rows = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  std::copy(indices.begin(), indices.end(), rows.mutable_data_ptr<int64_t>());
  Batch batch;
  batch.items().reserve(tensors_.items().size());
  for (const auto& [name, tensor] : tensors_.items())
    batch.items().emplace_back(name, tensor.index_select(0, tensor.is_cpu() ? rows : rows.to(tensor.device())));
  return batch;
}

}  // namespace levin::data
