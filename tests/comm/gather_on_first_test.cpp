#include <levin/core/comm/gather_on_first.h>

#include "../support/thread_collective.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace levin {
namespace {

using testing::run_ranks;
using testing::ThreadCollective;

/// Of other lengths on other ranks, and none on some.
std::string text_of(int64_t rank) {
  return rank % 5 == 3 ? std::string() : std::string(static_cast<size_t>(rank * 7 % 300), static_cast<char>(rank));
}

TEST(GatherOnFirst, RankZeroGetsTheBytesOfAllInTheirOrder) {
  for (const int64_t count : {1, 2, 5, 16, 17, 18, 31, 32, 33, 100}) {
    run_ranks(count, [&](ThreadCollective& ranks) {
      for (int64_t time = 0; time < 3; ++time) {
        const auto all = gather_bytes_on_first(ranks, text_of(ranks.rank() + time));
        std::vector<std::string> expected;
        for (int64_t rank = 0; ranks.rank() == 0 && rank < count; ++rank) expected.push_back(text_of(rank + time));
        EXPECT_EQ(all, expected) << "rank " << ranks.rank() << " of " << count;
      }
    });
  }
}

TEST(GatherOnFirst, NobodyMayHaveAnythingToSay) {
  run_ranks(20, [](ThreadCollective& ranks) {
    EXPECT_EQ(gather_bytes_on_first(ranks, "").size(), ranks.rank() == 0 ? 20U : 0U);
  });
}

TEST(GatherOnFirst, WhatAllReceiveTogetherGrowsWithRanksAndLogarithm) {
  constexpr int64_t kBytes = 1000;
  std::atomic<int64_t> received{0};
  run_ranks(128, [&](ThreadCollective& ranks) {
    gather_bytes_on_first(ranks, std::string(kBytes, 'x'));
    received += ranks.received();
    // Half of the ranks are nobody's father.
    if (ranks.rank() % 2 == 1) EXPECT_EQ(ranks.received(), 0);
    if (ranks.rank() == 0) EXPECT_EQ(ranks.calls(), 2 * 7);
  });
  EXPECT_EQ(received, 128 * 7 / 2 * (kBytes + 8));
}

}  // namespace
}  // namespace levin
