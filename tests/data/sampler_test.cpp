#include <levin/core/data/sampler.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace levin::data {
namespace {

TEST(Sampler, SequentialCounts) {
  EXPECT_EQ(SequentialSampler().order(4, 1, 1), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_TRUE(SequentialSampler().order(0, 1, 1).empty());
}

TEST(Sampler, RandomIsAPermutationOfSeedAndEpoch) {
  const RandomSampler sampler;
  auto order = sampler.order(1000, 5, 2);
  EXPECT_EQ(order, sampler.order(1000, 5, 2));
  EXPECT_NE(order, sampler.order(1000, 5, 3));
  EXPECT_NE(order, sampler.order(1000, 6, 2));
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, SequentialSampler().order(1000, 0, 0));
  EXPECT_TRUE(sampler.order(0, 1, 1).empty());
  EXPECT_EQ(sampler.order(1, 1, 1), std::vector<int64_t>{0});
}

TEST(Sampler, EachPermutationIsAboutAsFrequent) {
  const RandomSampler sampler;
  std::vector<int> counts(24);
  constexpr int kCount = 24'000;
  for (int seed = 0; seed < kCount; ++seed) {
    const auto order = sampler.order(4, static_cast<uint64_t>(seed), 0);
    int rank = 0;
    for (size_t i = 0; i < 4; ++i) {
      rank *= static_cast<int>(4 - i);
      for (size_t j = i + 1; j < 4; ++j) rank += order[j] < order[i] ? 1 : 0;
    }
    ++counts.at(static_cast<size_t>(rank));
  }
  // Chi-squared with 23 degrees of freedom exceeds 49.7 once in a thousand.
  double chi_squared = 0;
  for (int count : counts) chi_squared += (count - 1000) * (count - 1000) / 1000.0;
  EXPECT_LT(chi_squared, 49.7);
}

class EveryOther : public Sampler {
 public:
  std::vector<int64_t> order(int64_t dataset_size, uint64_t /*seed*/, int64_t /*epoch*/) const override {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < dataset_size; i += 2) indices.push_back(i);
    return indices;
  }
};

TEST(Sampler, LengthOfOnesOwnIsCounted) {
  EXPECT_EQ(EveryOther().length(5), 3);
  EXPECT_EQ(RandomSampler().length(5), 5);
}

}  // namespace
}  // namespace levin::data
