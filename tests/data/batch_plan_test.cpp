#include <levin/core/data/batch_plan.h>

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace levin::data {
namespace {

TEST(BatchPlan, OneRankGetsPlainBatches) {
  BatchPlan plan{.num_indices = 10, .batch_size = 4};
  EXPECT_EQ(plan.num_batches(), 3);
  EXPECT_EQ(plan.range(2).begin, 8);
  EXPECT_EQ(plan.range(2).end, 10);
  plan.drop_last = true;
  EXPECT_EQ(plan.num_batches(), 2);
  plan.num_indices = 0;
  EXPECT_EQ(plan.num_batches(), 0);
}

TEST(BatchPlan, RanksDivideEachGlobalBatchWithoutGapOrOverlap) {
  for (int64_t num_indices : {0, 1, 5, 12, 13, 17, 23, 24}) {
    for (int64_t world_size : {1, 2, 3, 5}) {
      for (bool drop_last : {false, true}) {
        std::vector<BatchPlan> plans;
        for (int64_t rank = 0; rank < world_size; ++rank)
          plans.push_back({num_indices, 4, drop_last, rank, world_size});
        int64_t next = 0;
        for (int64_t batch = 0; batch < plans.front().num_batches(); ++batch) {
          int64_t least = num_indices;
          int64_t most = 0;
          for (const auto& plan : plans) {
            if (batch >= plan.num_batches()) {
              least = 0;
              continue;
            }
            const auto range = plan.range(batch);
            EXPECT_EQ(range.begin, next);
            EXPECT_GT(range.end, range.begin) << "an empty batch";
            next = range.end;
            least = std::min(least, range.end - range.begin);
            most = std::max(most, range.end - range.begin);
          }
          EXPECT_LE(most - least, 1);
        }
        const int64_t global = 4 * world_size;
        EXPECT_EQ(next, drop_last ? num_indices / global * global : num_indices);
      }
    }
  }
}

TEST(BatchPlan, RanksDivideBatchesOfAnySizes) {
  const auto ends = std::make_shared<const std::vector<int64_t>>(std::vector<int64_t>{4, 5, 12, 14});
  for (int64_t world_size : {1, 2, 3, 5}) {
    std::vector<int64_t> next{0, 4, 5, 12};
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const BatchPlan plan{.num_indices = 14, .rank = rank, .world_size = world_size, .ends = ends};
      ASSERT_EQ(plan.num_batches(), 4);
      for (int64_t batch = 0; batch < 4; ++batch) {
        const auto range = plan.range(batch);
        const auto place = static_cast<size_t>(batch);
        if (plan.own_count(batch) == 0) {
          EXPECT_EQ(range.begin, (*ends)[place] - 1) << "its last example is lent";
          EXPECT_EQ(range.end, (*ends)[place]);
          continue;
        }
        EXPECT_EQ(range.begin, next[place]);
        EXPECT_EQ(range.end - range.begin, plan.own_count(batch));
        next[place] = range.end;
      }
      EXPECT_EQ(plan.global_count(0), 4);
      EXPECT_EQ(plan.global_count(2), 7);
      EXPECT_EQ(plan.global_count(4), 0);
    }
    EXPECT_EQ(next, *ends);
  }
}

}  // namespace
}  // namespace levin::data
