#include <levin/core/comm/heartbeat.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>

#include <chrono>

namespace levin {
namespace {

using namespace std::chrono_literals;

TEST(Heartbeat, SurvivesTheStore) {
  const Heartbeat waiting{.count = 7,
                          .batch = 12,
                          .activity = "on_train_batch_end (my callback)",
                          .collective = "all_reduce",
                          .evaluation = "sanity check",
                          .evaluation_loader = 1,
                          .evaluation_batch = 3,
                          .unchanged = 60123ms};
  const Heartbeat read = Heartbeat::decode(waiting.encode());
  EXPECT_EQ(read.count, 7);
  EXPECT_FALSE(read.left);
  EXPECT_EQ(read.batch, 12);
  EXPECT_EQ(read.activity, waiting.activity);
  EXPECT_EQ(read.collective, "all_reduce");
  EXPECT_EQ(read.evaluation, "sanity check");
  EXPECT_EQ(read.evaluation_loader, 1);
  EXPECT_EQ(read.evaluation_batch, 3);
  EXPECT_EQ(read.unchanged, 60123ms);
  EXPECT_TRUE(read.waits());

  const Heartbeat last = Heartbeat::decode(Heartbeat{.left = true, .collective = "barrier"}.encode());
  EXPECT_TRUE(last.left);
  EXPECT_EQ(last.batch, -1);
  EXPECT_EQ(last.activity, "");
  EXPECT_EQ(last.evaluation, "");
  EXPECT_FALSE(last.waits());
  EXPECT_THROW(Heartbeat::decode("7 0 12"), InternalError);
  EXPECT_THROW(Heartbeat::decode("?\n\n\n\n"), InternalError);
  EXPECT_THROW(Heartbeat::decode("7 0 12 60123\ntraining_step\n\n"), InternalError);
}

TEST(Heartbeat, SaysWhereARankIs) {
  const Heartbeat computing{.batch = 12, .activity = "training_step", .unchanged = 61s};
  EXPECT_EQ(computing.place(), "in training_step of batch 12");
  EXPECT_EQ(computing.sentence(), "in training_step of batch 12 for 61 s");
  const Heartbeat waiting{.batch = 12, .activity = "backward", .collective = "all_reduce", .unchanged = 60s};
  EXPECT_EQ(waiting.place(), "waiting in all_reduce of batch 12");
  EXPECT_EQ(waiting.sentence(), "waits in all_reduce of batch 12 for 60 s (activity backward)");
  Heartbeat validating{
      .batch = 12, .activity = "validation_step", .evaluation = "validation", .evaluation_batch = 3, .unchanged = 61s};
  EXPECT_EQ(validating.place(), "in validation_step of validation batch 3");
  validating.evaluation_loader = 1;
  validating.collective = "all_reduce";
  EXPECT_EQ(validating.sentence(),
            "waits in all_reduce of validation batch 3 of loader 1 for 61 s (activity validation_step)");
  EXPECT_EQ((Heartbeat{.activity = "setup", .unchanged = 250ms}).sentence(), "in setup for 250 ms");
  EXPECT_EQ((Heartbeat{.left = true}).sentence(), "has left");
}

TEST(Heartbeat, WritesDurations) {
  EXPECT_EQ(duration_text(999ms), "999 ms");
  EXPECT_EQ(duration_text(1000ms), "1 s");
  EXPECT_EQ(duration_text(8010ms), "8 s");
}

}  // namespace
}  // namespace levin
