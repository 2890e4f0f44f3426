#include <levin/core/comm/balanced_owners.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace levin {
namespace {

using ::testing::ElementsAre;

TEST(BalancedOwners, LargestFirstToTheRankThatHasLeast) {
  EXPECT_THAT(balanced_owners({1, 8, 3, 4}, 2), ElementsAre(1, 0, 1, 1));
  EXPECT_THAT(balanced_owners({5, 5, 5}, 2), ElementsAre(0, 1, 0));
  EXPECT_THAT(balanced_owners({7}, 3), ElementsAre(0));
  EXPECT_THAT(balanced_owners({0, 0, 0}, 2), ElementsAre(0, 1, 0)) << "tensors without elements have state too";
  EXPECT_TRUE(balanced_owners({}, 2).empty());
}

TEST(BalancedOwners, NoRankHasMoreThanAnEvenShareAndTheLargestTensor) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> sizes(1 + random() % 20);
    for (auto& size : sizes) size = 1 + static_cast<int64_t>(random() % 1000);
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 8);
    std::vector<int64_t> loads(static_cast<size_t>(ranks));
    const auto owners = balanced_owners(sizes, ranks);
    ASSERT_EQ(owners.size(), sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) loads.at(static_cast<size_t>(owners[i])) += sizes[i];
    const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    EXPECT_LE(std::ranges::max(loads), all / ranks + std::ranges::max(sizes));
  }
}

}  // namespace
}  // namespace levin
