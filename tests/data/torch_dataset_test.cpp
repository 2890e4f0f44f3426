// Data sets written for torch::data, through Levin's loader.

#include <levin/core/data/torch_dataset.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <optional>
#include <string>

namespace levin::data {
namespace {

/// Numbers and their squares. Two calls on one object at a time are noticed.
class Squares : public torch::data::datasets::Dataset<Squares> {
 public:
  torch::data::Example<> get(size_t index) override {
    EXPECT_FALSE(busy_) << "two threads use one copy";
    busy_ = true;
    const auto value = static_cast<float>(index);
    torch::data::Example<> example{torch::tensor({value, -value}), torch::tensor(value * value)};
    busy_ = false;
    return example;
  }
  std::optional<size_t> size() const override { return size_; }

  std::optional<size_t> size_ = 50;

 private:
  bool busy_ = false;
};

template <class D>
std::shared_ptr<TorchDataset<D>> adapted(D dataset) {
  return std::make_shared<TorchDataset<D>>(std::move(dataset));
}

TEST(TorchDataset, GivesTheExamplesOfTorchDataByManyThreads) {
  const DataLoader loader(adapted(Squares()), {.batch_size = 4, .shuffle = true, .num_workers = 3});
  const DataLoader alone(adapted(Squares()), {.batch_size = 4, .shuffle = true});
  const auto batches = testing::all_batches(loader, {.seed = 1});
  const auto expected = testing::all_batches(alone, {.seed = 1});
  ASSERT_EQ(batches.size(), 13U);
  for (size_t i = 0; i < batches.size(); ++i) {
    EXPECT_TRUE(batches[i]["data"].equal(expected[i]["data"]));
    EXPECT_TRUE(batches[i]["target"].equal(batches[i]["data"].select(1, 0).square()));
  }
}

TEST(TorchDataset, TakesMappedAndStackedDataSetsAndThoseWithoutTargets) {
  auto mapped =
      Squares().map(torch::data::transforms::TensorLambda<>([](const torch::Tensor& value) { return value + 1; }));
  auto stacked = Squares().map(torch::data::transforms::Stack<>());
  const torch::data::datasets::TensorDataset tensors(torch::arange(6));
  Generator generator(0, 0);
  const std::vector<int64_t> indices{2, 5};
  EXPECT_TRUE(adapted(mapped)->get_batch(indices, generator)["data"].equal(torch::tensor({{3.F, -1.F}, {6.F, -4.F}})));
  EXPECT_TRUE(adapted(stacked)->get_batch(indices, generator)["target"].equal(torch::tensor({4.F, 25.F})));
  const Batch bare = adapted(tensors)->get_batch(indices, generator);
  EXPECT_TRUE(bare["data"].equal(torch::tensor({2, 5}, torch::kLong)));
  EXPECT_EQ(bare.find("target"), nullptr);
}

TEST(TorchDataset, ADataSetWithoutSizeIsRefused) {
  Squares endless;
  endless.size_ = std::nullopt;
  EXPECT_THAT(testing::message_of([&] { adapted(endless); }), ::testing::HasSubstr("says no size"));
}

}  // namespace
}  // namespace levin::data
