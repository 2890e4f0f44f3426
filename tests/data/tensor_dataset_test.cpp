#include <levin/core/data/tensor_dataset.h>

#include <levin/core/base/error.h>
#include <levin/core/data/data_loader.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <vector>

namespace levin::data {
namespace {

TEST(TensorDataset, SelectsRows) {
  auto x = torch::randn({6, 3});
  auto y = torch::arange(6);
  const auto dataset = std::make_shared<TensorDataset>(Batch{{"x", x}, {"y", y}});
  EXPECT_EQ(dataset->size(), 6);
  Generator generator(0, 0);
  const std::vector<int64_t> rows{4, 0};
  EXPECT_TRUE(dataset->get_batch(rows, generator)["x"].equal(x.index_select(0, torch::tensor(rows))));
  EXPECT_TRUE(dataset->get(2, generator)["x"].equal(x[2]));
  auto pass = DataLoader(dataset, {.batch_size = 4, .num_workers = 2}).pass({});
  EXPECT_TRUE((*pass.next())["y"].equal(torch::arange(4)));
  EXPECT_TRUE((*pass.next())["y"].equal(torch::arange(4, 6)));
  EXPECT_THROW(TensorDataset(Batch{{"x", x}, {"y", torch::arange(5)}}), Error);
  EXPECT_THROW(TensorDataset(Batch{{"x", torch::tensor(1)}}), Error);
  EXPECT_THROW(TensorDataset(Batch{}), Error);
}

}  // namespace
}  // namespace levin::data
