#include <levin/core/data/concat_dataset.h>

#include <levin/core/data/pad_collate.h>
#include <levin/core/data/read_column.h>
#include <levin/core/data/subset.h>
#include <levin/core/data/tensor_dataset.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace levin::data {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::values_in;

std::shared_ptr<TensorDataset> numbers(int64_t begin, int64_t end) {
  const auto x = torch::arange(begin, end);
  return std::make_shared<TensorDataset>(Batch{{"x", x}, {"pair", torch::stack({x, -x}, 1).to(torch::kFloat)}});
}

/// Draws one number for each example, and one for each batch.
class Draws : public Dataset {
 public:
  int64_t size() const override { return 6; }
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override {
    at::Tensor of_example = torch::empty({std::ssize(indices)}, torch::kDouble);
    for (int64_t i = 0; i < std::ssize(indices); ++i)
      of_example[i] = generator.for_sample(indices[static_cast<size_t>(i)]).uniform();
    return {{"example", of_example}, {"batch", torch::full_like(of_example, generator.uniform())}};
  }
};

/// RaggedRows of the lengths 1, 2, ...
class RaggedRows : public Dataset {
 public:
  int64_t size() const override { return 4; }
  Batch get(int64_t index, Generator& /*generator*/) const override { return {{"x", torch::full({index + 1}, index)}}; }
  CollateFunction collate() const override { return pad_collate({.padding_value = {{"x", -1}}}); }
};

TEST(ConcatDataset, HasTheExamplesOfAllInOrder) {
  const auto all = std::make_shared<ConcatDataset>(
      std::vector<std::shared_ptr<const Dataset>>{numbers(0, 3), numbers(0, 0), numbers(3, 10), numbers(10, 11)});
  EXPECT_EQ(all->size(), 11);
  Generator generator(0, 0);
  const std::vector<int64_t> indices{10, 0, 4, 2, 4};
  const Batch batch = all->get_batch(indices, generator);
  EXPECT_TRUE(batch["x"].equal(torch::tensor(indices)));
  EXPECT_TRUE(
      batch["pair"].equal(torch::tensor({{10., -10.}, {0., 0.}, {4., -4.}, {2., -2.}, {4., -4.}}, torch::kFloat)));
  EXPECT_EQ(all->get(3, generator)["x"].item<int64_t>(), 3);
  EXPECT_TRUE(read_column(*all, "x").equal(torch::arange(11)));
  EXPECT_TRUE(read_column(Subset(all, {9, 2}), "x").equal(torch::tensor({9, 2}, torch::kLong)));

  // In a loader, whatever the workers and the ranks.
  const auto order = values_in(DataLoader(all, {.shuffle = true, .global_batch_size = 6}), "x", {.seed = 4});
  for (const int64_t workers : {1, 3}) {
    std::vector<int64_t> of_ranks;
    const DataLoader loader(all, {.shuffle = true, .num_workers = workers, .global_batch_size = 6});
    const auto first = testing::all_batches(loader, {.seed = 4, .rank = 0, .world_size = 2});
    const auto second = testing::all_batches(loader, {.seed = 4, .rank = 1, .world_size = 2});
    for (size_t i = 0; i < first.size(); ++i)
      for (const auto& part : {first[i], second[i]})
        for (int64_t row = 0; row < part.size(); ++row) of_ranks.push_back(part["x"][row].item<int64_t>());
    EXPECT_EQ(of_ranks, order) << workers << " workers";
  }
}

TEST(ConcatDataset, TheDataSetsDrawNumbersOfTheirOwn) {
  const ConcatDataset all({std::make_shared<Draws>(), std::make_shared<Draws>()});
  const auto draw = [&](std::vector<int64_t> indices) {
    Generator generator(8, 2, -3);
    return all.get_batch(indices, generator);
  };
  const Batch batch = draw({1, 7, 0, 6});
  EXPECT_NE(batch["example"][0].item<double>(), batch["example"][1].item<double>());
  EXPECT_NE(batch["batch"][0].item<double>(), batch["batch"][1].item<double>());
  // An example draws the same in any batch.
  EXPECT_EQ(draw({7})["example"][0].item<double>(), batch["example"][1].item<double>());
  Generator generator(8, 2, 7);
  EXPECT_EQ(draw({1})["example"][0].item<double>(), Generator(8, 2, 1).uniform());
}

TEST(ConcatDataset, CollatesAsTheFirstDataSet) {
  const ConcatDataset all({std::make_shared<RaggedRows>(), std::make_shared<RaggedRows>()});
  Generator generator(0, 0);
  const Batch batch = all.get_batch(std::vector<int64_t>{0, 6}, generator);
  EXPECT_TRUE(batch["x"].equal(torch::tensor({{0, -1, -1}, {2, 2, 2}}, torch::kLong)));
  EXPECT_TRUE(batch["x_length"].equal(torch::tensor({1, 3}, torch::kLong)));
}

TEST(ConcatDataset, SaysHowExamplesDiffer) {
  Generator generator(0, 0);
  const std::vector<int64_t> indices{0, 3};
  const auto message = [&](const Batch& second) {
    const ConcatDataset all({numbers(0, 3), std::make_shared<TensorDataset>(second)});
    return message_of([&] { all.get_batch(indices, generator); });
  };
  const auto x = torch::arange(2);
  EXPECT_THAT(message({{"x", x}, {"pair", torch::ones({2, 3})}}),
              HasSubstr("'pair' is [2] Float in data set 0 and [3] Float in data set 1"));
  EXPECT_THAT(message({{"x", x}, {"pair", torch::ones({2, 2}, torch::kLong)}}), HasSubstr("[2] Long in data set 1"));
  EXPECT_THAT(message({{"x", x}, {"other", x}}), HasSubstr("'pair' is in the first alone"));
  EXPECT_THAT(message({{"x", x}, {"pair", torch::ones({2, 2})}, {"more", x}}), HasSubstr("data set 1 has 3"));
  EXPECT_THAT(message_of([] { ConcatDataset({}); }), HasSubstr("at least one data set"));
  EXPECT_THAT(message_of([] { ConcatDataset({numbers(0, 1), nullptr}); }), HasSubstr("null pointer"));
  EXPECT_THAT(message_of([&] { ConcatDataset({numbers(0, 1)}).get_batch(indices, generator); }),
              HasSubstr("there is no example 3; the data set has 1"));
}

}  // namespace
}  // namespace levin::data
