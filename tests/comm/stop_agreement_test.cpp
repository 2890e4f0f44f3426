#include <levin/core/comm/stop_agreement.h>

#include <levin/core/comm/memory_store.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace levin {
namespace {

/// A rank whose own thread and whose helper take their turns one after the other, in the order that a test draws.
struct AgreeingRank {
  std::unique_ptr<StopAgreement> agreement;
  int64_t batch = 0;  ///< the next one
};

std::vector<AgreeingRank> make_ranks(int64_t count) {
  std::vector<AgreeingRank> ranks;
  for (int64_t rank = 0; rank < count; ++rank)
    ranks.push_back({.agreement = std::make_unique<StopAgreement>("job", rank, count)});
  return ranks;
}

int64_t draw(std::mt19937& generator, int64_t count) {
  return std::uniform_int_distribution<int64_t>(0, count - 1)(generator);
}

TEST(StopAgreement, StopsAllRanksBeforeTheSameBatchInAnyOrderOfEvents) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 generator(seed);
    const int64_t count = 1 + draw(generator, 5);
    // In step: no rank begins a batch before all have begun the one before, as with a collective in each.
    const bool in_step = draw(generator, 2) == 0;
    const int64_t requests = 1 + draw(generator, count);
    int64_t pending_requests = requests;
    auto store = make_memory_store();
    auto ranks = make_ranks(count);
    int64_t slowest = 0;
    int64_t turns_after_request = 0;
    // Every rank is at its gate when the agreement is there and nobody can move.
    const auto all_stopped = [&] {
      for (AgreeingRank& rank : ranks)
        if (rank.agreement->may_begin(rank.batch) || !rank.agreement->stops_before(rank.batch)) return false;
      return true;
    };
    for (bool done = false; !done;) {
      AgreeingRank& rank = ranks[draw(generator, count)];
      switch (draw(generator, 8)) {
        case 0:
          if (pending_requests > 0 && draw(generator, 4) == 0) {
            ranks[draw(generator, count)].agreement->request("test " + std::to_string(pending_requests));
            --pending_requests;
          }
          break;
        case 1:
        case 2:
          rank.agreement->step(*store);
          break;
        default:
          slowest = rank.batch;
          for (const AgreeingRank& other : ranks) slowest = std::min(slowest, other.batch);
          if (in_step && rank.batch > slowest) break;
          if (rank.agreement->may_begin(rank.batch)) ++rank.batch;
      }
      if (pending_requests < requests) ++turns_after_request;
      ASSERT_LT(turns_after_request, 10000) << "the ranks do not come to a stop";
      if (!store->contains("job/stop_at/0") || turns_after_request % 50 != 0) continue;
      for (AgreeingRank& other : ranks) other.agreement->step(*store);
      done = all_stopped();
    }
    for (const AgreeingRank& rank : ranks) ASSERT_EQ(rank.batch, ranks[0].batch);
    const std::string reason = ranks[0].agreement->reason();
    ASSERT_EQ(reason.substr(0, 5), "test ");
    for (const AgreeingRank& rank : ranks) ASSERT_EQ(rank.agreement->reason(), reason) << "each acts on what it hears";
  }
}

TEST(StopAgreement, StopsBeforeTheFirstBatch) {
  auto store = make_memory_store();
  auto ranks = make_ranks(2);
  ranks[1].agreement->request("early");
  for (int turn = 0; turn < 2; ++turn)
    for (AgreeingRank& rank : {std::ref(ranks[1]), std::ref(ranks[0])}) rank.agreement->step(*store);
  for (AgreeingRank& rank : ranks) {
    EXPECT_FALSE(rank.agreement->may_begin(0));
    EXPECT_TRUE(rank.agreement->stops_before(0));
    // A training that is resumed begins later.
    EXPECT_FALSE(rank.agreement->may_begin(500));
    EXPECT_TRUE(rank.agreement->stops_before(500));
  }
}

TEST(StopAgreement, LetsARankThatIsBehindGoOn) {
  auto store = make_memory_store();
  auto ranks = make_ranks(2);
  EXPECT_TRUE(ranks[0].agreement->may_begin(5));
  EXPECT_TRUE(ranks[1].agreement->may_begin(7));
  ranks[0].agreement->request("test");
  ranks[0].agreement->step(*store);
  EXPECT_FALSE(ranks[0].agreement->may_begin(6)) << "nobody knows yet where the others are";
  ranks[1].agreement->step(*store);  // its own thread does nothing
  ranks[0].agreement->step(*store);
  EXPECT_TRUE(ranks[0].agreement->may_begin(6));
  EXPECT_TRUE(ranks[0].agreement->may_begin(7));
  for (AgreeingRank& rank : ranks) {
    EXPECT_FALSE(rank.agreement->may_begin(8));
    EXPECT_TRUE(rank.agreement->stops_before(8));
  }
}

TEST(StopAgreement, DoesNotWaitForRanksThatLeft) {
  auto store = make_memory_store();
  auto ranks = make_ranks(3);
  EXPECT_TRUE(ranks[2].agreement->may_begin(9));
  ranks[2].agreement->leave(*store);
  EXPECT_TRUE(ranks[0].agreement->may_begin(3));
  ranks[0].agreement->request("test");
  ranks[0].agreement->step(*store);
  ranks[1].agreement->leave(*store);
  ranks[0].agreement->step(*store);
  EXPECT_TRUE(ranks[0].agreement->may_begin(9)) << "rank 2 has run that batch";
  EXPECT_FALSE(ranks[0].agreement->may_begin(10));
  EXPECT_TRUE(ranks[0].agreement->stops_before(10));
}

TEST(StopAgreement, DoesNotWaitForRanksThatAreLeftOut) {
  for (const bool gone_after_candidate : {false, true}) {
    auto store = make_memory_store();
    auto ranks = make_ranks(3);
    EXPECT_TRUE(ranks[2].agreement->may_begin(9));
    EXPECT_TRUE(ranks[0].agreement->may_begin(3));
    ranks[0].agreement->request("test");
    ranks[0].agreement->step(*store);
    if (gone_after_candidate) ranks[2].agreement->step(*store);
    ranks[0].agreement->leave_out(2);
    ranks[0].agreement->step(*store);
    EXPECT_FALSE(store->contains("job/stop_at/0")) << "rank 1 has not said anything yet";
    EXPECT_TRUE(ranks[1].agreement->may_begin(4));
    for (const size_t rank : {1, 0, 1}) ranks[rank].agreement->step(*store);
    const int64_t stop_at = gone_after_candidate ? 10 : 5;
    for (const size_t rank : {0, 1}) {
      EXPECT_TRUE(ranks[rank].agreement->may_begin(stop_at - 1));
      EXPECT_FALSE(ranks[rank].agreement->may_begin(stop_at));
      EXPECT_TRUE(ranks[rank].agreement->stops_before(stop_at));
    }
  }
}

TEST(StopAgreement, ForgetsARoundAndItsBatches) {
  auto store = make_memory_store();
  auto ranks = make_ranks(2);
  for (int64_t round = 0; round < 3; ++round) {
    for (AgreeingRank& rank : ranks)
      for (int64_t batch = 0; batch < 4; ++batch) EXPECT_TRUE(rank.agreement->may_begin(batch));
    ranks[0].agreement->request("round " + std::to_string(round));
    for (int turn = 0; turn < 2; ++turn)
      for (AgreeingRank& rank : ranks) rank.agreement->step(*store);
    for (AgreeingRank& rank : ranks) {
      EXPECT_FALSE(rank.agreement->may_begin(4));
      EXPECT_TRUE(rank.agreement->stops_before(4));
      EXPECT_EQ(rank.agreement->reason(), "round " + std::to_string(round));
    }
    for (AgreeingRank& rank : ranks) rank.agreement->forget();
    EXPECT_EQ(ranks[0].agreement->reason(), "");
  }
}

TEST(StopAgreement, BeginsNothingAfterAnInterruption) {
  auto store = make_memory_store();
  auto ranks = make_ranks(2);
  ranks[0].agreement->request("test");
  ranks[0].agreement->step(*store);
  ranks[0].agreement->interrupt();
  EXPECT_FALSE(ranks[0].agreement->may_begin(0));
  EXPECT_FALSE(ranks[0].agreement->stops_before(0));
  ranks[0].agreement->forget();
  EXPECT_FALSE(ranks[0].agreement->may_begin(0));
}

}  // namespace
}  // namespace levin
