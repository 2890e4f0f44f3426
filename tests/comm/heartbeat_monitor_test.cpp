#include <levin/core/comm/heartbeat_monitor.h>

#include <levin/core/base/log.h>
#include <levin/core/comm/memory_store.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace levin {
namespace {

using namespace std::chrono_literals;
using Clock = HeartbeatMonitor::Clock;

/// Ranks whose clock is turned by the test: heartbeats every second, dead after 8 s, stalled after 60 s.
class HeartbeatMonitorTest : public ::testing::Test {
 protected:
  struct Rank {
    ControlPlaneOptions options;
    RankStatus rank_status;
    std::unique_ptr<HeartbeatMonitor> monitor;
    bool alive = true;
  };

  void make_ranks(int64_t count) {
    for (int64_t rank = 0; rank < count; ++rank) {
      ranks_.push_back(std::make_unique<Rank>());
      ranks_.back()->options = {.rank = rank, .world_size = count, .prefix = "job"};
      ranks_.back()->monitor = std::make_unique<HeartbeatMonitor>(ranks_.back()->options);
    }
    log::set_sink([this](const std::string& line) { lines_.push_back(line); });
  }
  ~HeartbeatMonitorTest() override { log::set_sink(nullptr); }

  /// One second of every rank that lives; returns the failures found, "2>3: TEXT" for one of rank 3 found by rank 2.
  std::vector<std::string> tick() {
    std::vector<std::string> found;
    now_ += 1s;
    for (auto& rank : ranks_) {
      if (!rank->alive) continue;
      rank->monitor->observe(rank->rank_status, now_);
      rank->monitor->beat(*store_, now_);
    }
    for (auto& rank : ranks_) {
      if (!rank->alive) continue;
      if (const auto failure = rank->monitor->look(*store_, now_))
        found.push_back(std::to_string(rank->options.rank) + ">" + failure->text());
      rank->monitor->report_stall(*store_, now_);
      if (const auto hang = rank->monitor->look_for_hang(*store_))
        found.push_back(std::to_string(rank->options.rank) + ">" + hang->text());
    }
    return found;
  }
  std::vector<std::string> ticks(int64_t seconds) {
    std::vector<std::string> found;
    for (int64_t second = 0; second < seconds && found.empty(); ++second) found = tick();
    return found;
  }
  void leave(size_t rank) {
    ranks_[rank]->alive = false;
    ranks_[rank]->monitor->leave(*store_);
  }
  void place(size_t rank, int64_t batch, const char* activity, const char* collective) {
    ranks_[rank]->rank_status.batch = batch;
    ranks_[rank]->rank_status.activity = activity;
    ranks_[rank]->rank_status.collective = collective;
  }
  void place_evaluation(size_t rank, const char* evaluation, int64_t loader, int64_t batch) {
    ranks_[rank]->rank_status.evaluation = evaluation;
    ranks_[rank]->rank_status.evaluation_loader = loader;
    ranks_[rank]->rank_status.evaluation_batch = batch;
  }

  std::unique_ptr<Store> store_ = make_memory_store();
  Clock::time_point now_ = Clock::now();
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::string> lines_;
};

using Found = std::vector<std::string>;

TEST_F(HeartbeatMonitorTest, FindsARankThatFellSilentAfterTheTimeout) {
  make_ranks(4);
  place(2, 12, "training_step", nullptr);
  EXPECT_EQ(ticks(30), Found{});
  ranks_[2]->alive = false;
  EXPECT_EQ(ticks(7), Found{});
  EXPECT_EQ(tick(),
            Found{"1>rank 2 is gone: nothing was heard of it for 8 s (last seen in training_step of batch 12)"});
}

TEST_F(HeartbeatMonitorTest, FindsTwoThatDiedTogether) {
  make_ranks(4);
  EXPECT_EQ(tick(), Found{});
  ranks_[2]->alive = ranks_[3]->alive = false;
  place(0, 1, "backward", nullptr);
  const Found found = ticks(20);
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0], "1>rank 2 is gone: nothing was heard of it for 8 s (last seen in starting)");
}

TEST_F(HeartbeatMonitorTest, GivesARankThatNeverSpokeMoreTime) {
  make_ranks(2);
  ranks_[1]->alive = false;
  EXPECT_EQ(ticks(60), Found{});  // the first look starts the clock
  EXPECT_EQ(tick(), Found{"0>rank 1 is gone: nothing was ever heard of it in 60 s"});
}

TEST_F(HeartbeatMonitorTest, TakesGoodbyeForNoDeathAndWatchesTheNextOne) {
  make_ranks(4);
  EXPECT_EQ(tick(), Found{});
  leave(1);
  leave(2);
  EXPECT_EQ(ticks(40), Found{});
  ranks_[3]->alive = false;
  EXPECT_EQ(ticks(20), Found{"0>rank 3 is gone: nothing was heard of it for 8 s (last seen in starting)"});
}

TEST_F(HeartbeatMonitorTest, ExpectsNobodyOnceAllOthersHaveLeft) {
  make_ranks(3);
  EXPECT_EQ(tick(), Found{});
  leave(0);
  leave(2);
  EXPECT_EQ(ticks(100), Found{});
}

TEST_F(HeartbeatMonitorTest, IsAloneInAWorldOfOne) {
  make_ranks(1);
  EXPECT_EQ(ticks(100), Found{});
}

TEST_F(HeartbeatMonitorTest, DoesNotCountTimeInWhichItDidNotRun) {
  make_ranks(2);
  EXPECT_EQ(ticks(3), Found{});
  now_ += 1h;  // as if the whole job had been stopped and continued
  auto& watcher = *ranks_[0]->monitor;
  EXPECT_FALSE(watcher.look(*store_, now_));
  EXPECT_EQ(ticks(20), Found{});
}

TEST_F(HeartbeatMonitorTest, FindsARankThatHangsInAPartOfAStep) {
  make_ranks(3);
  for (auto& rank : ranks_) rank->options.hang_after = 20s;
  place(0, 12, "backward", "all_reduce");
  place(1, 12, "backward", "all_reduce");
  place(2, 12, "training_step", nullptr);
  EXPECT_EQ(ticks(20), Found{});
  EXPECT_EQ(tick(), Found{"2>rank 2 hangs: it has been in training_step of batch 12 for 20 s; where each rank is:\n"
                          "  rank 0: waits in all_reduce of batch 12 for 20 s (activity backward)\n"
                          "  rank 1: waits in all_reduce of batch 12 for 20 s (activity backward)\n"
                          "  rank 2: in training_step of batch 12 for 20 s"});
}

TEST_F(HeartbeatMonitorTest, FindsARankThatHangsInAPartOfAnEvaluation) {
  for (const char* activity : {"fetch_validation_batch", "validation_step", "fetch_test_batch", "test_step",
                               "fetch_predict_batch", "predict_step"}) {
    SCOPED_TRACE(activity);
    ranks_.clear();
    store_ = make_memory_store();
    make_ranks(2);
    for (auto& rank : ranks_) rank->options.hang_after = 20s;
    place(0, 12, "predict_step", "all_gather");
    place(1, -1, activity, nullptr);  // before any training
    place_evaluation(1, "prediction", 1, 3);
    EXPECT_EQ(ticks(20), Found{});
    EXPECT_EQ(tick(),
              Found{fmt::format("1>rank 1 hangs: it has been in {0} of prediction batch 3 of loader 1 for 20 s; "
                                "where each rank is:\n"
                                "  rank 0: waits in all_gather of batch 12 for 20 s (activity predict_step)\n"
                                "  rank 1: in {0} of prediction batch 3 of loader 1 for 20 s",
                                activity)});
  }
}

TEST_F(HeartbeatMonitorTest, TellsManyStepsOfEvaluationsFromALongOne) {
  make_ranks(1);
  ranks_[0]->options.hang_after = 20s;
  // Each second in another batch, then the one batch of another loader, then that of another validation.
  for (int64_t batch = 0; batch < 50; ++batch) {
    place(0, 12, "validation_step", nullptr);
    place_evaluation(0, "validation", 0, batch);
    EXPECT_EQ(tick(), Found{});
  }
  for (int64_t loader = 0; loader < 50; ++loader) {
    place_evaluation(0, "validation", loader, 0);
    EXPECT_EQ(tick(), Found{});
  }
  for (int64_t batch = 13; batch < 63; ++batch) {
    place(0, batch, "validation_step", nullptr);
    place_evaluation(0, "validation", 0, 0);
    EXPECT_EQ(tick(), Found{});
  }
  // What a user's hook at the end of the loop does is not watched, whatever it is called.
  place_evaluation(0, nullptr, 0, 0);
  EXPECT_EQ(ticks(100), Found{});
}

TEST_F(HeartbeatMonitorTest, FindsRanksThatAllWaitForEachOther) {
  make_ranks(3);
  for (auto& rank : ranks_) rank->options.hang_after = 20s;
  leave(0);
  place(1, 12, "backward", "all_reduce");
  place(2, 12, "training_step", "broadcast");
  EXPECT_EQ(ticks(20), Found{});
  EXPECT_EQ(tick(), Found{"1>rank 1 hangs: it has been waiting in all_reduce of batch 12 for 20 s, and all other ranks "
                          "wait as well; where each rank is:\n"
                          "  rank 0: has left\n"
                          "  rank 1: waits in all_reduce of batch 12 for 20 s (activity backward)\n"
                          "  rank 2: waits in broadcast of batch 12 for 20 s (activity training_step)"});
}

TEST_F(HeartbeatMonitorTest, TakesNoLongWorkOutsideOfStepsForAHang) {
  make_ranks(2);
  for (auto& rank : ranks_) rank->options.hang_after = 20s;
  // Rank 0 saves while the other waits for it.
  place(0, 12, "save_checkpoint", nullptr);
  place(1, 13, "backward", "all_reduce");
  EXPECT_EQ(ticks(100), Found{});
  // Before the first batch; then each second in another batch.
  place(0, -1, "training_step", nullptr);
  EXPECT_EQ(ticks(100), Found{});
  for (int64_t batch = 13; batch < 100; ++batch) {
    place(0, batch, "training_step", nullptr);
    EXPECT_EQ(tick(), Found{});
  }
  place(0, 100, "training_step", nullptr);
  EXPECT_EQ(ticks(19), Found{});
  now_ += 1h;  // as if the whole job had been stopped and continued
  EXPECT_FALSE(ranks_[0]->monitor->look_for_hang(*store_));
}

TEST_F(HeartbeatMonitorTest, EndsNoHangWithoutATimeOut) {
  make_ranks(2);
  place(0, 12, "training_step", nullptr);
  EXPECT_EQ(ticks(1000), Found{});
}

TEST_F(HeartbeatMonitorTest, ReportsAStallOnceOnTheLowestWaitingRank) {
  make_ranks(4);
  place(0, 12, "training_step", nullptr);
  EXPECT_EQ(ticks(2), Found{});
  leave(3);
  place(1, 12, "backward", "all_reduce");
  place(2, 12, "backward", "all_reduce");
  EXPECT_EQ(ticks(60), Found{});
  EXPECT_EQ(lines_, Found{});
  EXPECT_EQ(ticks(100), Found{});
  ASSERT_EQ(lines_.size(), 1);
  EXPECT_EQ(lines_[0],
            "[levin] warning: rank 1 waits in all_reduce for 60 s by now; where each rank is:\n"
            "  rank 0: in training_step of batch 12 for 62 s\n"
            "  rank 1: waits in all_reduce of batch 12 for 60 s (activity backward)\n"
            "  rank 2: waits in all_reduce of batch 12 for 60 s (activity backward)\n"
            "  rank 3: has left");
}

TEST_F(HeartbeatMonitorTest, ReportsEachStallAndNamesRanksThatWereNotHeardOf) {
  make_ranks(2);
  ranks_[0]->options.start_timeout = 1h;
  ranks_[1]->alive = false;
  place(0, 3, "training_step_end", "all_gather");
  ticks(70);
  place(0, 4, "training_step_end", "all_gather");
  ticks(59);
  ASSERT_EQ(lines_.size(), 1);
  EXPECT_EQ(lines_[0],
            "[levin] warning: rank 0 waits in all_gather for 60 s by now; where each rank is:\n"
            "  rank 0: waits in all_gather of batch 3 for 60 s (activity training_step_end)\n"
            "  rank 1: was not heard of yet");
  ticks(20);
  EXPECT_EQ(lines_.size(), 2);
}

TEST_F(HeartbeatMonitorTest, IsQuietWhileTheRankComputesHoweverLong) {
  make_ranks(2);
  place(0, 3, "training_step", nullptr);
  place(1, 3, "training_step", nullptr);
  ticks(500);
  EXPECT_EQ(lines_, Found{});
}

}  // namespace
}  // namespace levin
