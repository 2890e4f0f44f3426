#include <levin/core/data/random_split.h>

#include <levin/core/data/read_column.h>
#include <levin/core/data/tensor_dataset.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

namespace levin::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

struct StratifiedSplit {
  std::vector<int64_t> counts;  ///< examples of each class
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> parts;  ///< examples of each class in each part
  bool is_tied;                             ///< which of equal classes got one more was drawn
};

const std::vector<StratifiedSplit> kSplits = {
#include "../oracles/stratified_splits.inc"
};

/// Labels in an order in which the classes are mixed.
std::vector<int64_t> labels_with(const std::vector<int64_t>& counts) {
  std::vector<int64_t> labels;
  for (size_t label = 0; label < counts.size(); ++label)
    labels.insert(labels.end(), static_cast<size_t>(counts[label]), static_cast<int64_t>(label));
  Generator generator(11, 0);
  for (size_t i = labels.size(); i > 1; --i)
    std::swap(labels[i - 1], labels[static_cast<size_t>(generator.below(static_cast<int64_t>(i)))]);
  return labels;
}

void expect_each_example_once(const SplitIndices& parts, int64_t size) {
  std::vector<int64_t> all;
  for (const auto& part : parts) {
    EXPECT_TRUE(std::is_sorted(part.begin(), part.end()));
    all.insert(all.end(), part.begin(), part.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<int64_t> expected(static_cast<size_t>(size));
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

TEST(RandomSplit, IsAPureFunctionOfTheSeed) {
  const auto parts = random_split(100, {70, 20, 10}, 5);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].size(), 70U);
  EXPECT_EQ(parts[1].size(), 20U);
  expect_each_example_once(parts, 100);
  EXPECT_EQ(parts, random_split(100, {0.7, 0.2, 0.1}, 5));
  EXPECT_NE(parts, random_split(100, {70, 20, 10}, 6));
}

// As torch.utils.data.random_split.
TEST(RandomSplit, WhatFractionsLeaveOverGoesToTheFirstParts) {
  EXPECT_THAT(SplitLengths({0.5, 0.5}).of(11), ElementsAre(6, 5));
  EXPECT_THAT(SplitLengths({0.3, 0.3, 0.4}).of(10), ElementsAre(3, 3, 4));
  EXPECT_THAT(SplitLengths({1.0 / 3, 1.0 / 3, 1.0 / 3}).of(11), ElementsAre(4, 4, 3));
  EXPECT_THAT(SplitLengths({1.0}).of(4), ElementsAre(4));
}

TEST(RandomSplit, EachExampleIsInAPartAboutAsOftenAsItIsLarge) {
  std::vector<int> counts(10);
  constexpr int kCount = 2000;
  for (int seed = 0; seed < kCount; ++seed) {
    const auto parts = random_split(10, {3, 7}, static_cast<uint64_t>(seed));
    for (const int64_t index : parts[0]) ++counts[static_cast<size_t>(index)];
  }
  // 5 standard deviations of a binomial distribution.
  for (const int count : counts) EXPECT_NEAR(count, 0.3 * kCount, 103);
}

TEST(RandomSplit, DividesADataSet) {
  const auto whole = std::make_shared<TensorDataset>(Batch{{"x", torch::arange(10)}});
  const auto parts = random_split(whole, {0.8, 0.2}, 1);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0]->indices(), random_split(10, {8, 2}, 1)[0]);
  EXPECT_TRUE(read_column(*parts[1], "x").equal(torch::tensor(parts[1]->indices())));
}

TEST(StratifiedSplit, HasTheClassesOfScikitLearns) {
  for (const auto& split : kSplits) {
    const auto labels = labels_with(split.counts);
    const auto parts = stratified_split(labels, split.sizes, 3);
    expect_each_example_once(parts, std::ssize(labels));
    for (size_t i = 0; i < parts.size(); ++i) {
      std::vector<int64_t> counts(split.counts.size());
      for (const int64_t index : parts[i]) ++counts[static_cast<size_t>(labels[static_cast<size_t>(index)])];
      auto expected = split.parts[i];
      if (split.is_tied) {
        std::sort(counts.begin(), counts.end());
        std::sort(expected.begin(), expected.end());
      }
      EXPECT_EQ(counts, expected);
    }
  }
  EXPECT_EQ(kSplits.size(), 24U);
}

TEST(StratifiedSplit, IsAPureFunctionOfTheSeed) {
  const auto labels = labels_with({20, 30, 50});
  const auto parts = stratified_split(labels, {0.8, 0.2}, 1);
  EXPECT_EQ(parts, stratified_split(labels, {80, 20}, 1));
  EXPECT_NE(parts, stratified_split(labels, {80, 20}, 2));
  const auto whole = std::make_shared<TensorDataset>(Batch{{"label", torch::tensor(labels)}});
  EXPECT_EQ(stratified_split(whole, {0.8, 0.2}, 1)[1]->indices(), parts[1]);
}

TEST(RandomSplit, OneMessageForEachMistake) {
  EXPECT_THAT(message_of([] {
                random_split(10, {0.8, 0.3});
              }),
              HasSubstr("the fractions of a split add up to 1; got 0.8 + 0.3, which is 1.1"));
  EXPECT_THAT(message_of([] { random_split(10, {0.8, 0.1}); }), HasSubstr("which is 0.9"));
  EXPECT_THAT(message_of([] { random_split(10, {1.5, -0.5}); }), HasSubstr("numbers above 0"));
  EXPECT_THAT(message_of([] { random_split(10, {8, 3}); }), HasSubstr("got 8 + 3, which is 11; valid: 10 together"));
  EXPECT_THAT(message_of([] {
                random_split(10, {10, 0});
              }),
              HasSubstr("part 1 of a split of 10 examples has no examples; got 0 of them"));
  EXPECT_THAT(message_of([] { random_split(3, {0.9, 0.1}); }), HasSubstr("part 1 of a split of 3 examples"));
  EXPECT_THAT(message_of([] { random_split(3, std::vector<int64_t>{}); }), HasSubstr("at least one part"));
  const std::vector<std::string> names{"cat", "dog"};
  const std::vector<int64_t> labels{0, 0, 0, 0, 1};
  EXPECT_THAT(message_of([&] {
                stratified_split(labels, {3, 2}, 0, names);
              }),
              HasSubstr("two examples of each class; got one of class 'dog'"));
  EXPECT_THAT(message_of([&] { stratified_split(labels, {3, 2}); }), HasSubstr("got one of class 1;"));
  EXPECT_THAT(message_of([&] {
                stratified_split(std::vector<int64_t>{0, 0, 1, 1}, {3, 1});
              }),
              HasSubstr("got 1 example for 2 classes in part 1"));
  const auto whole = std::make_shared<TensorDataset>(
      Batch{{"x", torch::arange(4)}, {"wide", torch::zeros({4, 2})}, {"half", torch::full({4}, 0.5)}});
  EXPECT_THAT(message_of([&] { stratified_split(whole, {2, 2}); }), HasSubstr("no tensor 'label'; it has: x, wide"));
  EXPECT_THAT(message_of([&] {
                stratified_split(whole, {2, 2}, 0, "wide");
              }),
              HasSubstr("'wide' must have the number of a class for each example, [N] whole numbers; got [4, 2]"));
  EXPECT_THAT(message_of([&] { stratified_split(whole, {2, 2}, 0, "half"); }), HasSubstr("got fractions"));
}

}  // namespace
}  // namespace levin::data
