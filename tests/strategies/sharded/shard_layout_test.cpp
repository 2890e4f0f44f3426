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
    EXPECT_TRUE(layout.is_even());
    EXPECT_EQ(layout.flat_size(), ranks * layout.shard_size(0));
    int64_t end = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_GE(layout.offset(i), end);
      end = layout.offset(i) + sizes[i];
      int64_t covered = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto local_shard = layout.local_shard(i, rank);
        if (local_shard.size == 0) continue;
        EXPECT_EQ(local_shard.in_parameter, covered);
        EXPECT_EQ(layout.offset(i) + local_shard.in_parameter, layout.shard_begin(rank) + local_shard.in_shard);
        EXPECT_EQ(layout.shard_size(rank), layout.shard_size(0));
        EXPECT_LE(local_shard.in_shard + local_shard.size, layout.shard_size(rank));
        covered += local_shard.size;
      }
      EXPECT_EQ(covered, sizes[i]);
    }
    EXPECT_LE(end, layout.flat_size());
  }
}

TEST(ShardLayout, AParameterIsWholeInTheShardOfItsOwner) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 7);
    std::vector<int64_t> sizes(1 + random() % 6);
    std::vector<int64_t> owners(sizes.size());
    for (auto& size : sizes) size = static_cast<int64_t>(random() % 50);
    for (auto& owner : owners) owner = static_cast<int64_t>(random() % static_cast<uint64_t>(ranks));
    const ShardLayout layout(sizes, owners, ranks);
    EXPECT_FALSE(layout.is_even());
    std::vector<bool> taken(static_cast<size_t>(layout.flat_size()));
    int64_t end = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(layout.shard_begin(rank), end);
      end += layout.shard_size(rank);
      for (size_t i = 0; i < sizes.size(); ++i) {
        const auto local_shard = layout.local_shard(i, rank);
        EXPECT_EQ(local_shard.size, owners[i] == rank ? sizes[i] : 0);
        if (local_shard.size == 0) continue;
        EXPECT_EQ(local_shard.in_parameter, 0);
        EXPECT_EQ(layout.offset(i), layout.shard_begin(rank) + local_shard.in_shard);
        EXPECT_EQ(layout.offset(i) % 8, 0);
        EXPECT_LE(local_shard.in_shard + local_shard.size, layout.shard_size(rank));
        for (int64_t at = layout.offset(i); at < layout.offset(i) + sizes[i]; ++at) {
          EXPECT_FALSE(taken[static_cast<size_t>(at)]);
          taken[static_cast<size_t>(at)] = true;
        }
      }
    }
    EXPECT_EQ(layout.flat_size(), end);
  }
}

TEST(ShardLayout, WastesLittle) {
  const ShardLayout layout({512 * 512, 512, 512, 512}, 4);
  EXPECT_EQ(layout.flat_size(), 512 * 512 + 3 * 512);
  EXPECT_EQ(layout.offset(1) % 8, 0);
}

}  // namespace
}  // namespace levin
