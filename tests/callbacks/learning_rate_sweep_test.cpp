#include <levin/callbacks/learning_rate_plot.h>
#include <levin/callbacks/learning_rate_sweep.h>

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>

namespace levin {
namespace {

using ::testing::HasSubstr;

/// What a sweep typically measures: level, then falling around 1e-3, then diverging from 0.1 on.
double typical_loss(double rate) { return 0.3 + 2 / (1 + std::pow(rate / 1e-3, 1.5)) + std::pow(rate / 0.15, 4); }

LearningRateSweep typical_sweep(const LearningRateSweep::Options& options = {}) {
  LearningRateSweep sweep(options);
  for (int64_t step = 0; step < options.steps; ++step)
    if (!sweep.add(sweep.rate(step), typical_loss(sweep.rate(step)))) break;
  return sweep;
}

TEST(LearningRateSweep, RatesRiseFromTheFirstToTheLast) {
  const LearningRateSweep exponential({.min_lr = 1e-6, .max_lr = 1, .steps = 7});
  for (int64_t step = 0; step < 7; ++step)
    EXPECT_NEAR(exponential.rate(step) / std::pow(10, static_cast<double>(step) - 6), 1, 1e-12);
  const LearningRateSweep linear({.min_lr = 1, .max_lr = 3, .steps = 5, .exponential = false});
  EXPECT_DOUBLE_EQ(linear.rate(0), 1);
  EXPECT_DOUBLE_EQ(linear.rate(1), 1.5);
  EXPECT_DOUBLE_EQ(linear.rate(4), 3);
}

TEST(LearningRateSweep, TheSmoothedLossOfAConstantIsThatConstant) {
  LearningRateSweep sweep({});
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(sweep.add(0.1, 3.0));
  for (const auto& point : sweep.points()) EXPECT_NEAR(point.smoothed, 3.0, 1e-12);
  EXPECT_EQ(sweep.suggestion(), std::nullopt);
  EXPECT_THAT(sweep.why_nothing(), HasSubstr("fell nowhere between 0.1 and 0.1"));
}

TEST(LearningRateSweep, SuggestsWhereTheSmoothedLossFallsMostSteeply) {
  const LearningRateSweep sweep = typical_sweep();
  const auto best = sweep.steepest();
  ASSERT_TRUE(best);
  const auto& points = sweep.points();
  const double slope = points[*best + 1].smoothed - points[*best - 1].smoothed;
  for (size_t i = 11; i + 2 < points.size(); ++i)
    EXPECT_GE(points[i + 1].smoothed - points[i - 1].smoothed, slope) << i;
  // The smoothing lags behind.
  EXPECT_GT(*sweep.suggestion(), 1e-3);
  EXPECT_LT(*sweep.suggestion(), 0.1);
  EXPECT_NEAR(*sweep.suggestion() / points[*best].rate, 1, 0.005);
}

TEST(LearningRateSweep, EndsWhenTheLossDiverges) {
  LearningRateSweep sweep({});
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(sweep.add(0.1 * (i + 1), 1.0));
  EXPECT_FALSE(sweep.add(2, 1000.0));
  LearningRateSweep patient({.early_stop_threshold = std::nullopt});
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(patient.add(0.1 * (i + 1), 1.0));
  EXPECT_TRUE(patient.add(2, 1000.0));
}

TEST(LearningRateSweep, ALossMayBeNegative) {
  LearningRateSweep sweep({});
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(sweep.add(0.1, -3.0 - i)) << i;
  bool diverged = false;
  for (int i = 0; i < 200 && !diverged; ++i) diverged = !sweep.add(0.1, 100.0 * i);
  EXPECT_TRUE(diverged);
}

TEST(LearningRateSweep, WhatIsNoNumberEndsItAndIsLeftOut) {
  LearningRateSweep sweep({});
  EXPECT_TRUE(sweep.add(0.1, 1));
  EXPECT_FALSE(sweep.add(0.2, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(sweep.add(0.2, std::numeric_limits<double>::infinity()));
  EXPECT_EQ(sweep.points().size(), 1);
}

TEST(LearningRateSweep, SaysThatThereAreTooFewPoints) {
  LearningRateSweep sweep({.steps = 12});
  for (int64_t step = 0; step < 12; ++step) sweep.add(sweep.rate(step), 12.0 - static_cast<double>(step));
  EXPECT_EQ(sweep.suggestion(), std::nullopt);
  EXPECT_THAT(sweep.why_nothing(), HasSubstr("only 12 points"));
}

TEST(LearningRateSweep, IsDrawnWithItsSuggestion) {
  const LearningRateSweep sweep = typical_sweep();
  const std::string svg = learning_rate_plot(sweep);
  EXPECT_THAT(svg, ::testing::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, HasSubstr("Learning rate sweep: suggestion 0.0"));
  EXPECT_THAT(svg, HasSubstr(">1e-06</text>"));
  EXPECT_THAT(svg, HasSubstr("<circle"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_THAT(learning_rate_plot(LearningRateSweep({}, {{0.1, 2, 2}, {0.2, 2, 2}})), HasSubstr("nothing to suggest"));
  if (const char* folder = std::getenv("LEVIN_TEST_PLOTS")) std::ofstream(std::string(folder) + "/sweep.svg") << svg;
}

TEST(LearningRateSweep, TheTableHasEveryPoint) {
  EXPECT_EQ(learning_rate_table(LearningRateSweep({}, {{0.1, 2, 3}, {0.5, 1.25, 2.5}})),
            "learning_rate,loss,smoothed_loss\n0.1,2,3\n0.5,1.25,2.5\n");
}

}  // namespace
}  // namespace levin
