#include <levin/core/data/weighted_random_sampler.h>

#include <levin/core/data/tensor_dataset.h>

#include "reader_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace levin::data {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

/// The statistic of Pearson's test.
double chi_squared(const std::vector<int64_t>& counts, const std::vector<double>& expected) {
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i)
    sum +=
        (static_cast<double>(counts[i]) - expected[i]) * (static_cast<double>(counts[i]) - expected[i]) / expected[i];
  return sum;
}

TEST(WeightedRandomSampler, DrawsEachExampleAsOftenAsItsWeightSays) {
  const std::vector<double> weights{1, 0, 2, 4, 0.5, 2.5, 0};
  const WeightedRandomSampler sampler(weights, {.num_samples = 1000});
  EXPECT_EQ(sampler.length(7), 1000);
  std::vector<int64_t> counts(7);
  for (int64_t epoch = 0; epoch < 20; ++epoch)
    for (const int64_t index : sampler.order(7, 3, epoch)) ++counts.at(static_cast<size_t>(index));
  EXPECT_EQ(counts[1], 0);
  EXPECT_EQ(counts[6], 0);
  // With 4 degrees of freedom it exceeds 18.5 once in a thousand.
  EXPECT_LT(chi_squared({counts[0], counts[2], counts[3], counts[4], counts[5]}, {2000, 4000, 8000, 1000, 5000}), 18.5);
}

TEST(WeightedRandomSampler, IsAPureFunctionOfSeedAndEpoch) {
  for (const bool replacement : {true, false}) {
    const WeightedRandomSampler sampler({1, 2, 3, 4, 5, 6, 7, 8}, {.num_samples = 6, .replacement = replacement});
    const auto order = sampler.order(8, 1, 2);
    EXPECT_EQ(order.size(), 6U);
    EXPECT_EQ(order, sampler.order(8, 1, 2));
    EXPECT_NE(order, sampler.order(8, 1, 3));
    EXPECT_NE(order, sampler.order(8, 2, 2));
  }
}

// The probability of an order is that of its first example, times that of its second among the rest, and so on.
TEST(WeightedRandomSampler, WithoutReplacementDrawsOneAfterTheOther) {
  const std::vector<double> weights{1, 2, 0, 5};
  const WeightedRandomSampler sampler(weights, {.num_samples = 2, .replacement = false});
  std::vector<int64_t> counts(6);
  const std::vector<std::vector<int64_t>> orders{{0, 1}, {0, 3}, {1, 0}, {1, 3}, {3, 0}, {3, 1}};
  constexpr int kCount = 24'000;
  for (int seed = 0; seed < kCount; ++seed) {
    const auto found = std::find(orders.begin(), orders.end(), sampler.order(4, static_cast<uint64_t>(seed), 0));
    ASSERT_NE(found, orders.end());
    ++counts[static_cast<size_t>(found - orders.begin())];
  }
  std::vector<double> expected;
  for (const auto& order : orders) {
    const double first = weights[static_cast<size_t>(order[0])];
    const double second = weights[static_cast<size_t>(order[1])];
    expected.push_back(kCount * first / 8 * second / (8 - first));
  }
  EXPECT_LT(chi_squared(counts, expected), 20.5) << "5 degrees of freedom";

  // All that can be drawn, each once.
  const auto all = WeightedRandomSampler(weights, {.num_samples = 3, .replacement = false}).order(4, 0, 0);
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()), (std::set<int64_t>{0, 1, 3}));
}

TEST(WeightedRandomSampler, BalancesClasses) {
  std::vector<int64_t> labels(1000, 0);
  for (size_t i = 0; i < 40; ++i) labels[i * 7] = i < 10 ? 1 : 5;
  const WeightedRandomSampler sampler(class_balanced_weights(labels));
  std::vector<int64_t> counts(3);
  std::set<int64_t> rare;
  for (int64_t epoch = 0; epoch < 9; ++epoch)
    for (const int64_t index : sampler.order(1000, 2, epoch)) {
      const int64_t label = labels[static_cast<size_t>(index)];
      ++counts[label == 5 ? 2 : static_cast<size_t>(label)];
      if (label == 1) rare.insert(index);
    }
  EXPECT_LT(chi_squared(counts, {3000, 3000, 3000}), 13.8) << "2 degrees of freedom";
  EXPECT_EQ(rare.size(), 10U);
  EXPECT_EQ(class_weights(std::vector<int64_t>{1, 0, 1}, std::vector<double>{0.5, 3}),
            (std::vector<double>{3, 0.5, 3}));
}

TEST(WeightedRandomSampler, RanksWorkersAndResumesChangeNothing) {
  const auto dataset = std::make_shared<TensorDataset>(Batch{{"x", torch::arange(50)}});
  const auto sampler = std::make_shared<WeightedRandomSampler>(std::vector<double>(50, 1.0),
                                                               WeightedRandomSamplerOptions{.num_samples = 23});
  const auto order = sampler->order(50, 7, 1);
  for (const int64_t workers : {0, 2})
    for (const int64_t ranks : {1, 2, 3})
      for (const int64_t first : {0, 5, 6}) {
        const DataLoader loader(dataset, {.num_workers = workers, .global_batch_size = 6}, sampler);
        EXPECT_EQ(loader.num_batches(ranks), 4);
        std::vector<std::vector<Batch>> of_ranks;
        for (int64_t rank = 0; rank < ranks; ++rank)
          of_ranks.push_back(testing::all_batches(
              loader, {.seed = 7, .epoch = 1, .rank = rank, .world_size = ranks, .first_example = first}));
        std::vector<int64_t> seen;
        for (size_t batch = 0; batch < of_ranks[0].size(); ++batch)
          for (const auto& batches : of_ranks) {
            if (batch >= batches.size()) continue;  // fewer examples than ranks were left
            for (int64_t i = 0; i < batches[batch].size(); ++i) seen.push_back(batches[batch]["x"][i].item<int64_t>());
          }
        EXPECT_EQ(seen, std::vector<int64_t>(order.begin() + first, order.end())) << workers << ", " << ranks;
      }
}

TEST(WeightedRandomSampler, OneMessageForEachMistake) {
  EXPECT_THAT(message_of([] {
                WeightedRandomSampler({1, -0.5});
              }),
              HasSubstr("a weight must be a number that is not below 0; got -0.5 for example 1"));
  EXPECT_THAT(message_of([] { WeightedRandomSampler({std::nan("")}); }), HasSubstr("got nan for example 0"));
  EXPECT_THAT(message_of([] { WeightedRandomSampler({std::numeric_limits<double>::infinity()}); }), HasSubstr("inf"));
  EXPECT_THAT(message_of([] { WeightedRandomSampler({0, 0}); }), HasSubstr("the weights of 2 examples have the sum 0"));
  EXPECT_THAT(message_of([] { WeightedRandomSampler({}); }), HasSubstr("0 examples have the sum 0"));
  EXPECT_THAT(message_of([] {
                WeightedRandomSampler({1, 0, 1}, {.replacement = false});
              }),
              HasSubstr("3 samples cannot be drawn without replacement from 2 examples whose weight is above 0"));
  EXPECT_THAT(message_of([] { WeightedRandomSampler({1}, {.num_samples = 0}); }), HasSubstr("num_samples is 0"));
  EXPECT_THAT(message_of([] {
                WeightedRandomSampler({1, 2}).order(3, 0, 0);
              }),
              HasSubstr("the sampler has 2 weights, the data set 3 examples; valid: one for each"));
  EXPECT_THAT(message_of([] {
                class_weights(std::vector<int64_t>{0, 2}, std::vector<double>{1, 1});
              }),
              HasSubstr("class 2 has no weight; got 2 weights"));
  EXPECT_THAT(message_of([] { class_balanced_weights({}); }), HasSubstr("no examples"));
}

}  // namespace
}  // namespace levin::data
