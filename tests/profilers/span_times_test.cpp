#include <levin/core/profilers/span_times.h>

#include <gtest/gtest.h>

#include <thread>

namespace levin {
namespace {

using std::chrono::milliseconds;

void spend(milliseconds time) {
  const auto until = SpanTimes::Clock::now() + time;
  while (SpanTimes::Clock::now() < until) {
  }
}

TEST(SpanTimes, SelfTimeIsWithoutWhatIsInside) {
  SpanTimes times;
  for (int i = 0; i < 3; ++i) {
    times.begin("outer");
    spend(milliseconds(2));
    times.begin("inner");
    spend(milliseconds(4));
    times.end();
    times.end();
  }
  const auto rows = times.by_total();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].name, "outer");
  EXPECT_EQ(rows[1].name, "inner");
  EXPECT_EQ(rows[0].calls, 3);
  EXPECT_EQ(rows[1].calls, 3);
  EXPECT_EQ(rows[1].self, rows[1].total);
  EXPECT_EQ(rows[0].self, rows[0].total - rows[1].total);
  EXPECT_GE(rows[0].self, milliseconds(6));
  EXPECT_GE(rows[1].total, milliseconds(12));
}

TEST(SpanTimes, ASpanInItselfCountsOnceInTheTotal) {
  SpanTimes times;
  const auto began = SpanTimes::Clock::now();
  times.begin("tree");
  times.begin("tree");
  spend(milliseconds(3));
  times.end();
  times.end();
  const auto took = SpanTimes::Clock::now() - began;
  const SpanTime row = times.by_total().at(0);
  EXPECT_EQ(row.calls, 2);
  EXPECT_LE(row.total, took);
  EXPECT_EQ(row.self, row.total);
}

TEST(SpanTimes, OneNameAtTwoAddressesIsOneRow) {
  const std::string first = "backward";
  const std::string second = "backward";
  SpanTimes times;
  times.begin(first.c_str());
  times.end();
  times.begin(second.c_str());
  times.end();
  ASSERT_EQ(times.by_total().size(), 1u);
  EXPECT_EQ(times.by_total().at(0).calls, 2);
}

TEST(SpanTimes, AnEndTooManyDoesNothing) {
  SpanTimes times;
  times.end();
  times.begin("a");
  times.end();
  times.end();
  EXPECT_EQ(times.by_total().at(0).calls, 1);
}

TEST(SpanTimes, ThreadsAddUp) {
  SpanTimes here;
  SpanTimes there;
  here.begin("unit");
  here.end();
  std::thread([&] {
    there.begin("unit");
    spend(milliseconds(1));
    there.end();
  }).join();
  const auto rows = SpanTimes::merged({&here, &there});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].calls, 2);
  EXPECT_GE(rows[0].total, milliseconds(1));
}

}  // namespace
}  // namespace levin
