#include <levin/core/data/generator.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>
#include <vector>

namespace levin::data {
namespace {

TEST(Generator, IsAFunctionOfSeedEpochAndSample) {
  Generator a(1, 2, 3);
  Generator b(1, 2, 3);
  std::set<uint64_t> firsts;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(a.next(), b.next());
  for (int64_t seed = 0; seed < 4; ++seed)
    for (int64_t epoch = 0; epoch < 4; ++epoch)
      for (int64_t sample = -4; sample < 4; ++sample)
        firsts.insert(Generator(static_cast<uint64_t>(seed), epoch, sample).next());
  EXPECT_EQ(firsts.size(), 4u * 4u * 8u);
}

TEST(Generator, ForSampleDoesNotDependOnWhatWasDrawn) {
  Generator batch(7, 1);
  const uint64_t before = batch.for_sample(5).next();
  batch.next();
  EXPECT_EQ(batch.for_sample(5).next(), before);
  EXPECT_EQ(Generator(7, 1, 5).next(), before);
}

TEST(Generator, UniformFillsTheUnitInterval) {
  Generator generator(11, 0);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100'000;
  for (int i = 0; i < kCount; ++i) {
    const double value = generator.uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 0.005);
}

TEST(Generator, BelowIsUnbiased) {
  Generator generator(3, 0);
  constexpr int kBound = 6;
  constexpr int kCount = 60'000;
  std::vector<int> counts(kBound);
  for (int i = 0; i < kCount; ++i) ++counts.at(static_cast<size_t>(generator.below(kBound)));
  // Chi-squared with 5 degrees of freedom exceeds 20.5 once in a thousand seeds.
  double chi_squared = 0;
  for (int count : counts)
    chi_squared += (count - kCount / kBound) * (count - kCount / kBound) * 1.0 / (kCount / kBound);
  EXPECT_LT(chi_squared, 20.5);

  // A bound where taking the remainder of 64 bits would favour the lower half two to one.
  constexpr int64_t kHuge = (int64_t{1} << 62) + (int64_t{1} << 61);
  int lower = 0;
  for (int i = 0; i < kCount; ++i) lower += generator.below(kHuge) < kHuge / 2 ? 1 : 0;
  EXPECT_NEAR(lower, kCount / 2, 600);
  EXPECT_EQ(generator.below(1), 0);
  EXPECT_THROW(generator.below(0), Error);
}

TEST(Generator, GivesLibTorchAGeneratorOfItsOwn) {
  torch::manual_seed(5);
  const auto expected = torch::rand({3});
  torch::manual_seed(5);
  Generator a(1, 2, 3);
  Generator b(1, 2, 3);
  const auto first = torch::randn({8}, a.torch());
  EXPECT_TRUE(first.equal(torch::randn({8}, b.torch())));
  EXPECT_FALSE(first.equal(torch::randn({8}, a.torch())));
  EXPECT_TRUE(torch::rand({3}).equal(expected)) << "the global generator was used";
}

}  // namespace
}  // namespace levin::data
