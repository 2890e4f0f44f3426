#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/mutex.h>
#include <levin/core/data/dataset.h>

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace levin::data {

/// A data set written for torch::data, with transforms mapped over it or not: one that gives
/// torch::data::Example<Tensor, Tensor> or torch::data::TensorExample. Batches: "data", and "target" where there is
/// one.
///
///     auto mnist = torch::data::datasets::MNIST(folder).map(torch::data::transforms::Normalize<>(0.13, 0.31));
///     levin::DataLoader loader(std::make_shared<levin::data::TorchDataset<decltype(mnist)>>(mnist), {.batch_size =
///     64});
///
/// Its `get_batch` may change members, so that each of the threads that call it has a copy of its own, as with
/// torch::data's loader. What it draws at random comes from LibTorch's global generator: such transforms give other
/// values when a run is resumed.
template <class D>
class TorchDataset : public Dataset {
 public:
  static_assert(!D::is_stateful, "a stateful data set of torch::data has no size; hint: write an IterableDataset");

  /// Keeps a copy. Throws levin::Error when it does not know its size.
  explicit TorchDataset(D dataset) : dataset_(std::move(dataset)) {
    const auto size = dataset_.size();
    if (!size.has_value())
      throw Error("data", "a data set of torch::data says no size; hint: write an IterableDataset");
    size_ = static_cast<int64_t>(*size);
  }

  int64_t size() const override { return size_; }

  Batch get_batch(std::span<const int64_t> indices, Generator& /*generator*/) const override {
    std::vector<size_t> places(indices.begin(), indices.end());
    std::unique_ptr<D> copy = take_copy();
    auto found = copy->get_batch(places);
    give_back(std::move(copy));
    if constexpr (requires { found.data.defined(); }) {
      return to_batch(std::move(found));
    } else {
      std::vector<Batch> examples;
      examples.reserve(found.size());
      for (auto& example : found) examples.push_back(to_batch(std::move(example)));
      return stack_examples(examples);
    }
  }

 private:
  template <class Example>
  static Batch to_batch(Example example) {
    if constexpr (requires { example.target.defined(); })
      return {{"data", std::move(example.data)}, {"target", std::move(example.target)}};
    else
      return {{"data", std::move(example.data)}};
  }

  std::unique_ptr<D> take_copy() const {
    const MutexLock lock(mutex_);
    if (free_.empty()) return std::make_unique<D>(dataset_);
    std::unique_ptr<D> copy = std::move(free_.back());
    free_.pop_back();
    return copy;
  }
  void give_back(std::unique_ptr<D> copy) const {
    const MutexLock lock(mutex_);
    free_.push_back(std::move(copy));
  }

  D dataset_;
  int64_t size_ = 0;
  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<D>> free_ LEVIN_GUARDED_BY(mutex_);
};

}  // namespace levin::data
