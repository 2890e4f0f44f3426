#include <levin/strategies/comm/attempt.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/memory_store.h>

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace levin {
namespace {

constexpr std::chrono::milliseconds kLong{60'000};
constexpr std::chrono::milliseconds kShort{50};

/// One attempt of `world_size` ranks; what each of them calls it.
std::set<std::string> run_attempt(const Store& store, int64_t world_size) {
  std::vector<std::string> names(static_cast<size_t>(world_size));
  std::vector<std::thread> ranks;
  for (int64_t rank = world_size; rank-- > 0;)
    ranks.emplace_back([&, rank, own = std::shared_ptr<Store>(store.clone())] {
      names[static_cast<size_t>(rank)] = agree_on_attempt(*own, rank, world_size, kLong);
    });
  for (auto& rank : ranks) rank.join();
  return {names.begin(), names.end()};
}

std::string error_of(Store& store, int64_t rank, int64_t world_size) {
  try {
    agree_on_attempt(store, rank, world_size, kShort);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(AttemptTest, RanksAgreeOnANewNameInEveryAttempt) {
  const auto store = make_memory_store();
  std::set<std::string> seen;
  // Hosts come and go, so that numbers of earlier attempts lie about for some ranks and not for others.
  for (const int64_t world_size : {4, 4, 1, 2, 6, 3}) {
    const auto names = run_attempt(*store, world_size);
    ASSERT_EQ(names.size(), 1u);
    EXPECT_FALSE(names.begin()->empty());
    EXPECT_TRUE(seen.insert(*names.begin()).second) << *names.begin();
  }
}

TEST(AttemptTest, AttemptThatFailedBeforeDoesNotMatter) {
  const auto store = make_memory_store();
  EXPECT_NE(error_of(*store, 1, 3), "no error");  // rank 1 came, rank 0 did not
  EXPECT_NE(error_of(*store, 0, 3), "no error");  // ... and the other way round
  EXPECT_EQ(run_attempt(*store, 3).size(), 1u);
}

TEST(AttemptTest, RankZeroNamesThoseWhoDidNotCome) {
  const auto store = make_memory_store();
  EXPECT_EQ(error_of(*store, 0, 4),
            "[comm] rank 0 waited 50 ms for all 4 ranks in the launcher's store; missing: 1, 2, 3");
}

TEST(AttemptTest, OthersMissRankZero) {
  const auto store = make_memory_store();
  EXPECT_NE(error_of(*store, 2, 4).find("rank 2 had no answer from rank 0"), std::string::npos);
}

TEST(AttemptTest, NoRankWaitsInVain) {
  const auto in_vain = [] { return RankFailure{.rank = 1, .message = "was killed", .gone = true}; };
  const auto store = make_memory_store();
  EXPECT_THROW(agree_on_attempt(*store, 0, 2, kLong, in_vain), RankFailedError);
}

}  // namespace
}  // namespace levin
