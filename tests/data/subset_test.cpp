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

/// Examples whose second tensor is drawn; they are collated under another name.
class Drawn : public Dataset {
 public:
  int64_t size() const override { return 10; }
  Batch get(int64_t index, Generator& generator) const override {
    return {{"x", torch::tensor(index)}, {"draw", torch::tensor(generator.uniform(), torch::kDouble)}};
  }
  CollateFunction collate() const override {
    return [](std::span<const Batch> examples) -> Batch {
      const Batch stacked = stack_examples(examples);
      return {{"collated", stacked["x"]}, {"draw", stacked["draw"]}};
    };
  }
};

TEST(Subset, IsThoseExamplesWithWhatTheyDraw) {
  const auto whole = std::make_shared<Drawn>();
  const Subset subset(whole, {7, 2, 2, 9});
  EXPECT_EQ(subset.size(), 4);
  Generator generator(3, 1, -5);
  const std::vector<int64_t> indices{3, 0, 1};
  const Batch got = subset.get_batch(indices, generator);
  const Batch expected = whole->get_batch(std::vector<int64_t>{9, 7, 2}, generator);
  EXPECT_TRUE(got["collated"].equal(expected["collated"]));
  EXPECT_TRUE(got["draw"].equal(expected["draw"]));
  EXPECT_TRUE(subset.get(0, generator)["draw"].equal(expected["draw"][1]));
  ASSERT_TRUE(static_cast<bool>(subset.collate()));

  // One of a subset.
  const Subset inner(std::make_shared<Subset>(subset), {3});
  EXPECT_EQ(inner.get(0, generator)["x"].item<int64_t>(), 9);
}

TEST(Subset, NamesAnExampleThatThereIsNot) {
  const auto whole = std::make_shared<Drawn>();
  EXPECT_THAT(message_of([&] {
                Subset(whole, {3, 10});
              }),
              HasSubstr("a Subset names example 10 of a data set that has 10; valid: 0 to 9"));
  EXPECT_THAT(message_of([&] { Subset(whole, {-1}); }), HasSubstr("example -1"));
  EXPECT_THAT(message_of([&] { Subset(nullptr, {}); }), HasSubstr("null pointer"));
  Generator generator(0, 0);
  EXPECT_THAT(message_of([&] { Subset(whole, {3}).get_batch(std::vector<int64_t>{1}, generator); }),
              HasSubstr("there is no example 1; the data set has 1"));
}

}  // namespace
}  // namespace levin::data
