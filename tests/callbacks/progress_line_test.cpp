#include <levin/callbacks/progress_line.h>

#include <gtest/gtest.h>

#include <cmath>

namespace levin {
namespace {

Progress half_way() {
  return {.description = "Epoch 3",
          .done = 422,
          .total = 844,
          .seconds = 3.0,
          .metrics = {{"train_loss", 0.31234}, {"val_acc", 0.9}}};
}

TEST(ProgressLine, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(render_progress(half_way(), 110, false),
            "Epoch 3:  50%|##############               | 422/844 [00:03<00:03, 140.7it/s, train_loss=0.312, "
            "val_acc=0.900]");
  EXPECT_EQ(render_progress(half_way()),
            "Epoch 3:  50% 422/844 [00:03<00:03, 140.7it/s, train_loss=0.312, val_acc=0.900]");
}

TEST(ProgressLine, FitsAnyWidth) {
  Progress progress = half_way();
  progress.metrics["größe"] = 1e-9;
  for (const bool blocks : {false, true})
    for (size_t columns = 1; columns < 200; ++columns)
      EXPECT_LE(count_characters(render_progress(progress, columns, blocks)), columns) << columns;
}

TEST(ProgressLine, LeavesOutMetricsBeforeTheRest) {
  const std::string line = render_progress(half_way(), 60, false);
  EXPECT_EQ(line.find("val_acc"), line.npos) << line;
  EXPECT_NE(line.find("| 422/844 [00:03<00:03, 140.7it/s"), line.npos) << line;
  EXPECT_EQ(render_progress(half_way(), 44, false), "Epoch 3:  50% 422/844 [00:03<00:03, 140.7it/");
}

TEST(ProgressLine, TheBarHasALongestLength) {
  const std::string line = render_progress(half_way(), 500, false);
  EXPECT_NE(line.find("|####################                    |"), line.npos) << line;
}

TEST(ProgressLine, BlocksShowEighths) {
  Progress progress = half_way();
  progress.metrics.clear();
  progress.done = 1;
  progress.total = 16;
  progress.seconds = 1;
  const std::string line = render_progress(progress, 55, true);
  EXPECT_NE(line.find("|▊           |"), line.npos) << line;
  EXPECT_EQ(count_characters(line), 55u) << line;
}

TEST(ProgressLine, UnsizedLoadersHaveNoBar) {
  Progress progress = half_way();
  progress.total = -1;
  EXPECT_EQ(render_progress(progress, 100, true), "Epoch 3: 422/? [00:03, 140.7it/s, train_loss=0.312, val_acc=0.900]");
}

TEST(ProgressLine, TheRateCountsFromTheResumedBatch) {
  Progress progress = half_way();
  progress.resumed = 416;
  const std::string line = render_progress(progress);
  EXPECT_NE(line.find("[00:03<03:31, 2.0it/s"), line.npos) << line;
}

TEST(ProgressLine, SlowSteps) {
  Progress progress{.description = "Test", .done = 2, .total = 4, .seconds = 5};
  EXPECT_EQ(render_progress(progress), "Test:  50% 2/4 [00:05<00:05, 2.50s/it]");
  progress.done = 0;
  EXPECT_EQ(render_progress(progress), "Test:   0% 0/4 [00:05<?, ?it/s]");
}

TEST(ProgressLine, FullOnlyWhenDone) {
  Progress progress{.description = "Test", .done = 9999, .total = 10000, .seconds = 5};
  EXPECT_EQ(render_progress(progress).find("100%"), std::string::npos);
  progress.done = 10000;
  EXPECT_NE(render_progress(progress).find("100%"), std::string::npos);
  EXPECT_EQ(render_progress(Progress{.description = "Test", .total = 0}), "Test: 100% 0/0 [00:00<?, ?it/s]");
}

TEST(ProgressLine, Clocks) {
  EXPECT_EQ(clock_time(0.9), "00:00");
  EXPECT_EQ(clock_time(187), "03:07");
  EXPECT_EQ(clock_time(3723), "1:02:03");
  EXPECT_EQ(clock_time(-1), "00:00");
}

TEST(ProgressLine, Numbers) {
  EXPECT_EQ(short_number(0), "0.000");
  EXPECT_EQ(short_number(0.31234), "0.312");
  EXPECT_EQ(short_number(-12.5), "-12.500");
  EXPECT_EQ(short_number(1234.56), "1234.6");
  EXPECT_EQ(short_number(1.2e-5), "1.20e-05");
  EXPECT_EQ(short_number(1.2e9), "1.20e+09");
  EXPECT_EQ(short_number(std::nan("")), "nan");
  EXPECT_EQ(short_number(INFINITY), "inf");
}

}  // namespace
}  // namespace levin
