#include <levin/core/comm/hang_watch.h>

#include "../support/eventually.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <string>

namespace levin {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A watch that tells the test instead of ending it.
class HangWatchTest : public ::testing::Test {
 protected:
  HangWatch make_watch(std::chrono::milliseconds hang_after) {
    return {rank_status_, hang_after, [this](const std::string& reason) { reason_.set_value(reason); }};
  }
  bool has_given_up_in(std::chrono::milliseconds time) { return gave_up_.wait_for(time) == std::future_status::ready; }

  RankStatus rank_status_;
  std::promise<std::string> reason_;
  std::future<std::string> gave_up_ = reason_.get_future();
};

TEST_F(HangWatchTest, GivesUpOnARankThatStaysInOnePartOfAStep) {
  rank_status_.batch = 12;
  rank_status_.activity = "training_step";
  const HangWatch watch = make_watch(1s);
  ASSERT_TRUE(has_given_up_in(240s));
  const std::string reason = gave_up_.get();
  EXPECT_THAT(reason, StartsWith("rank 0 hangs: it has been in training_step of batch 12 for "));
  EXPECT_THAT(reason, HasSubstr(" s; hint: the strategy's hang_timeout says how long that may take"));
}

TEST_F(HangWatchTest, LeavesARankAloneThatGoesOnOrIsInNoStep) {
  rank_status_.batch = 0;
  rank_status_.activity = "training_step";
  // In a short time a rank may not come to its next batch.
  EXPECT_TRUE(testing::with_time_enough([&](std::chrono::seconds time) {
    reason_ = std::promise<std::string>();
    gave_up_ = reason_.get_future();
    const HangWatch watch = make_watch(time);
    for (int64_t batch = 0; batch < 35; ++batch) {
      rank_status_.batch = batch;
      if (has_given_up_in(std::chrono::milliseconds(time) / 10)) return false;
    }
    return true;
  }));
  rank_status_.activity = "on_train_epoch_end";  // a hook of the user's may take as long as it likes
  const HangWatch watch = make_watch(1s);
  EXPECT_FALSE(has_given_up_in(3s));
}

TEST_F(HangWatchTest, EndsAtOnce) {
  const auto started = std::chrono::steady_clock::now();
  for (int i = 0; i < 300; ++i) const HangWatch watch = make_watch(600s);
  EXPECT_LT(std::chrono::steady_clock::now() - started, 240s);  // of looks there is one a second
  EXPECT_EQ(make_hang_watch(nullptr, 600), nullptr);
  EXPECT_EQ(make_hang_watch(&rank_status_, 0), nullptr);
  EXPECT_NE(make_hang_watch(&rank_status_, 600), nullptr);
}

}  // namespace
}  // namespace levin
