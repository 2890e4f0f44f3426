#include <levin/core/data/length_grouped_sampler.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace levin::data {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

std::vector<int64_t> random_lengths(int64_t count) {
  Generator generator(5, 0);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) lengths.push_back(1 + generator.below(200));
  return lengths;
}

/// Places that are padding, as a part of all, in batches of `batch_size`.
double padding_in(const std::vector<int64_t>& order, const std::vector<int64_t>& lengths, size_t batch_size) {
  int64_t tokens = 0;
  int64_t places = 0;
  for (size_t begin = 0; begin < order.size(); begin += batch_size) {
    const size_t end = std::min(begin + batch_size, order.size());
    int64_t longest = 0;
    for (size_t i = begin; i < end; ++i) {
      tokens += lengths[static_cast<size_t>(order[i])];
      longest = std::max(longest, lengths[static_cast<size_t>(order[i])]);
    }
    places += longest * static_cast<int64_t>(end - begin);
  }
  return 1 - static_cast<double>(tokens) / static_cast<double>(places);
}

TEST(LengthGroupedSampler, BatchesHaveExamplesOfAboutOneLength) {
  const auto lengths = random_lengths(1003);
  const LengthGroupedSampler sampler(lengths, {.group_size = 8});
  const auto order = sampler.order(1003, 1, 0);
  EXPECT_LT(padding_in(order, lengths, 8), 0.04);
  EXPECT_GT(padding_in(RandomSampler().order(1003, 1, 0), lengths, 8), 0.3);
  EXPECT_EQ(lengths[static_cast<size_t>(order[0])], *std::max_element(lengths.begin(), lengths.end()));

  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, SequentialSampler().order(1003, 0, 0)) << "each example once";
  EXPECT_EQ(sampler.length(1003), 1003);
}

TEST(LengthGroupedSampler, IsDrawnFromSeedAndEpoch) {
  const auto lengths = random_lengths(200);
  const LengthGroupedSampler sampler(lengths, {.group_size = 4, .window = 5});
  const auto order = sampler.order(200, 1, 0);
  EXPECT_EQ(order, sampler.order(200, 1, 0));
  EXPECT_NE(order, sampler.order(200, 1, 1));
  EXPECT_NE(order, sampler.order(200, 2, 0));
  // Long batches are not all at the beginning.
  int64_t falls = 0;
  for (size_t i = 4; i < 200; i += 4)
    if (lengths[static_cast<size_t>(order[i])] < lengths[static_cast<size_t>(order[i - 4])]) ++falls;
  EXPECT_GT(falls, 10);
  EXPECT_LT(falls, 39);
}

TEST(LengthGroupedSampler, TakesAnySizes) {
  for (const int64_t size : {0, 1, 3, 7, 8, 9})
    for (const int64_t group : {1, 4, 8, 100}) {
      auto order = LengthGroupedSampler(random_lengths(size), {.group_size = group, .window = 2}).order(size, 0, 0);
      std::sort(order.begin(), order.end());
      EXPECT_EQ(order, SequentialSampler().order(size, 0, 0));
    }
}

TEST(LengthGroupedSampler, OneMessageForEachMistake) {
  EXPECT_THAT(message_of([] { LengthGroupedSampler({1}, {.group_size = 0}); }), HasSubstr("groups of 0"));
  EXPECT_THAT(message_of([] { LengthGroupedSampler({1}, {.window = 0}); }), HasSubstr("windows of 0"));
  EXPECT_THAT(message_of([] { LengthGroupedSampler({1}, {}).order(2, 0, 0); }),
              HasSubstr("the sampler has 1 length, the data set 2 examples"));
}

}  // namespace
}  // namespace levin::data
