#include <levin/strategies/sharded/shard_layout.h>

#include <gtest/gtest.h>

#include <random>

namespace levin {
namespace {

TEST(ShardLayout, EveryElementIsInOneShardAndInOrder) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> sizes(1 + random() % 6);
    for (auto& size : sizes) size = static_cast<int64_t>(random() % 50);
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 7);
    const ShardLayout layout(sizes, ranks);
    EXPECT_EQ(layout.flat_size(), ranks * layout.shard_size());
    int64_t end = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_GE(layout.offset(i), end);
      end = layout.offset(i) + sizes[i];
      int64_t covered = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto local_shard = layout.local_shard(i, rank);
        if (local_shard.size == 0) continue;
        EXPECT_EQ(local_shard.in_parameter, covered);
        EXPECT_EQ(layout.offset(i) + local_shard.in_parameter, rank * layout.shard_size() + local_shard.in_shard);
        EXPECT_LE(local_shard.in_shard + local_shard.size, layout.shard_size());
        covered += local_shard.size;
      }
      EXPECT_EQ(covered, sizes[i]);
    }
    EXPECT_LE(end, layout.flat_size());
  }
}

TEST(ShardLayout, WastesLittle) {
  const ShardLayout layout({512 * 512, 512, 512, 512}, 4);
  EXPECT_EQ(layout.flat_size(), 512 * 512 + 3 * 512);
  EXPECT_EQ(layout.offset(1) % 8, 0);
}

}  // namespace
}  // namespace levin
