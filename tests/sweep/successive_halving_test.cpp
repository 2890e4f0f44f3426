#include <levin/core/sweep/successive_halving.h>

#include <gmock/gmock-matchers.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace levin::sweep {
namespace {

using ::testing::ElementsAre;

std::optional<std::pair<int64_t, size_t>> next_of(const SuccessiveHalving& halving, bool nothing_left = false) {
  const auto promotion = halving.next(nothing_left);
  if (!promotion) return {};
  return std::pair(promotion->run, promotion->rung);
}

TEST(SuccessiveHalvingRungs, ArePowersOfTheFactorBelowTheEnd) {
  EXPECT_THAT(rung_epochs(1, 3, 27), ElementsAre(1, 3, 9, 27));
  EXPECT_THAT(rung_epochs(1, 3, 20), ElementsAre(1, 3, 9, 20));
  EXPECT_THAT(rung_epochs(2, 4, 3), ElementsAre(2, 3));
  EXPECT_THAT(rung_epochs(1, 1.2, 4), ElementsAre(1, 2, 3, 4));
}

TEST(SuccessiveHalving, TheBestOfEveryThreeGoesOnWithoutWaitingForTheOthers) {
  SuccessiveHalving halving(3, 3, MonitorMode::kMin);
  halving.record(0, 0, 0.5);
  halving.record(1, 0, 0.4);
  EXPECT_EQ(next_of(halving), std::nullopt);
  halving.record(2, 0, 0.6);
  EXPECT_EQ(next_of(halving), std::pair(int64_t{1}, size_t{1}));
  halving.promote(1, 0);
  EXPECT_EQ(next_of(halving), std::nullopt);
  // A better one that comes later goes on too: 2 of 6.
  halving.record(3, 0, 0.3);
  EXPECT_EQ(next_of(halving), std::pair(int64_t{3}, size_t{1})) << "it is the best of 4, of whom one may go on";
}

TEST(SuccessiveHalving, HigherRungsComeFirst) {
  SuccessiveHalving halving(3, 2, MonitorMode::kMax);
  for (int64_t run = 0; run < 4; ++run) halving.record(run, 0, static_cast<double>(run));
  halving.promote(3, 0);
  halving.promote(2, 0);
  halving.record(3, 1, 1.0);
  halving.record(2, 1, 2.0);
  halving.record(9, 0, 9.0);
  EXPECT_EQ(next_of(halving), std::pair(int64_t{2}, size_t{2}));
  halving.promote(2, 1);
  EXPECT_EQ(next_of(halving), std::pair(int64_t{9}, size_t{1}));
}

TEST(SuccessiveHalving, WhatIsNotFiniteIsTheWorstInBothModesAndNeverGoesOn) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const MonitorMode mode : {MonitorMode::kMin, MonitorMode::kMax}) {
    SuccessiveHalving halving(2, 1.5, mode);
    halving.record(0, 0, std::numeric_limits<double>::quiet_NaN());
    halving.record(1, 0, 5.0);
    halving.record(2, 0, kInfinity);
    halving.record(3, 0, -kInfinity);
    EXPECT_EQ(next_of(halving), std::pair(int64_t{1}, size_t{1})) << "2 of 4 may go on";
    halving.promote(1, 0);
    EXPECT_EQ(next_of(halving), std::nullopt);
    EXPECT_EQ(next_of(halving, /*nothing_left=*/true), std::nullopt);
  }
  SuccessiveHalving halving(2, 2, MonitorMode::kMin);
  halving.record(0, 0, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(next_of(halving, /*nothing_left=*/true), std::nullopt);
}

TEST(SuccessiveHalving, OneRunComesToTheEndHoweverFewThereAre) {
  SuccessiveHalving halving(3, 4, MonitorMode::kMin);
  halving.record(0, 0, 0.2);
  halving.record(1, 0, 0.1);
  EXPECT_EQ(next_of(halving), std::nullopt);
  EXPECT_EQ(next_of(halving, /*nothing_left=*/true), std::pair(int64_t{1}, size_t{1}));
  halving.promote(1, 0);
  EXPECT_EQ(next_of(halving, true), std::nullopt);
  halving.record(1, 1, 0.1);
  EXPECT_EQ(next_of(halving, true), std::pair(int64_t{1}, size_t{2}));
  halving.promote(1, 1);
  halving.record(1, 2, 0.05);
  EXPECT_EQ(next_of(halving, true), std::nullopt);
}

}  // namespace
}  // namespace levin::sweep
