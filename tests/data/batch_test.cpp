#include <levin/core/data/batch.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>
#include <torch/types.h>

namespace levin {
namespace {

Batch numbers(int64_t size) {
  return {{"x", torch::arange(size * 2).reshape({size, 2}).to(torch::kFloat)}, {"y", torch::arange(size)}};
}

TEST(Batch, FindsTensorsByName) {
  Batch batch = numbers(3);
  EXPECT_EQ(batch.size(), 3);
  EXPECT_TRUE(batch["y"].equal(torch::arange(3)));
  EXPECT_EQ(batch.find("z"), nullptr);
  batch["z"] = torch::ones({3});
  EXPECT_EQ(batch.items().size(), 3u);
  batch.set("z", torch::zeros({3}));
  EXPECT_EQ(batch.items().size(), 3u);
  EXPECT_EQ(batch["z"].sum().item<float>(), 0);
}

TEST(Batch, SaysWhichTensorsThereAre) {
  const Batch batch = numbers(1);
  try {
    batch["image"];
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[data] the batch has no tensor 'image'; it has: x, y");
  }
  EXPECT_THROW((Batch{{"x", torch::ones({1})}, {"x", torch::ones({1})}}), Error);
}

TEST(Batch, SizeSkipsTensorsWithoutDimensions) {
  EXPECT_EQ(Batch().size(), 0);
  EXPECT_EQ((Batch{{"scale", torch::tensor(2.0)}}).size(), 1);
  EXPECT_EQ((Batch{{"scale", torch::tensor(2.0)}, {"x", torch::ones({4, 2})}}).size(), 4);
}

TEST(Batch, SplitIsUndoneByConcatenate) {
  for (int64_t size : {1, 2, 5, 8}) {
    const Batch batch = numbers(size);
    for (int64_t parts : {1, 2, 3, 8}) {
      const auto pieces = batch.split(parts);
      EXPECT_EQ(pieces.size(), static_cast<size_t>(std::min(parts, size)));
      EXPECT_LE(pieces.front().size() - pieces.back().size(), 1);
      const Batch whole = Batch::concatenate(pieces);
      EXPECT_TRUE(whole["x"].equal(batch["x"]));
      EXPECT_TRUE(whole["y"].equal(batch["y"]));
    }
  }
  EXPECT_TRUE(Batch().split(2).empty());
  EXPECT_EQ(numbers(0).split(3).size(), 1u);
  EXPECT_THROW(numbers(2).split(0), Error);
  // What cannot be split is whole.
  const Batch graphs{{"nodes", torch::ones({7, 3})}, {"edges", torch::zeros({2, 9})}};
  EXPECT_THROW(graphs.split(2), Error);
  ASSERT_EQ(graphs.split(1).size(), 1u);
  EXPECT_EQ(graphs.split(1)[0]["edges"].size(0), 2);
}

/// Autograd would take what is done to one part for a change of the others.
TEST(Batch, PartsCountTheirChangesInPlaceByThemselves) {
  const Batch batch = numbers(6);
  auto parts = batch.split(3);
  const at::Tensor weight = torch::ones({2, 1}).requires_grad_();
  const at::Tensor first = parts[0]["x"].mm(weight).sum();
  parts[1]["x"].add_(1);
  EXPECT_NO_THROW(first.backward());
  EXPECT_EQ(batch["x"][2][0].item<float>(), 5) << "the memory is the batch's";
  // A part may be given another shape in place, and one that requires a gradient stays in the batch's graph.
  parts[2]["y"].unsqueeze_(1);
  EXPECT_EQ(parts[2]["y"].dim(), 2);
  Batch inputs = numbers(4);
  inputs["x"].requires_grad_();
  inputs.split(2)[1]["x"].sum().backward();
  EXPECT_EQ(inputs["x"].grad().sum().item<float>(), 4);
}

TEST(Batch, SlicesExamplesAndKeepsScalars) {
  Batch batch = numbers(4);
  batch["scale"] = torch::tensor(2.0);
  const Batch middle = batch.slice(1, 3);
  EXPECT_TRUE(middle["y"].equal(torch::arange(1, 3)));
  EXPECT_EQ(middle["scale"].item<double>(), 2.0);
  EXPECT_THROW(batch.slice(2, 5), Error);
  batch["y"] = torch::arange(3);
  EXPECT_THROW(batch.slice(0, 2), Error);
}

TEST(Batch, ToFloatingLeavesIntegers) {
  const Batch batch = numbers(2).to_floating(torch::kDouble);
  EXPECT_EQ(batch["x"].scalar_type(), torch::kDouble);
  EXPECT_EQ(batch["y"].scalar_type(), torch::kLong);
}

TEST(Batch, ToTheSameDeviceIsNoCopy) {
  const Batch batch = numbers(2);
  EXPECT_TRUE(batch.to(torch::kCPU)["x"].is_same(batch["x"]));
}

}  // namespace
}  // namespace levin
