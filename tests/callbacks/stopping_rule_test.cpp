#include <levin/callbacks/stopping_rule.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using Limits = StoppingRule::Limits;

/// Index of the value that ends training; -1 when none does. `reason`: why.
int stops_at(const Limits& limits, const std::vector<double>& values, std::string* reason = nullptr) {
  StoppingRule rule("val_loss", limits);
  for (size_t i = 0; i < values.size(); ++i) {
    rule.observe(values[i]);
    if (rule.stop_reason().empty()) continue;
    if (reason != nullptr) *reason = rule.stop_reason();
    return static_cast<int>(i);
  }
  return -1;
}

TEST(StoppingRule, Patience) {
  std::string reason;
  EXPECT_EQ(stops_at({.patience = 2}, {3, 2, 2.5, 2.1, 0}, &reason), 3);
  EXPECT_EQ(reason, "val_loss did not improve in the last 2 values (best: 2)");
  EXPECT_EQ(stops_at({.patience = 3}, {3, 2, 2.5, 2.1, 1, 2, 2}), -1);
  EXPECT_EQ(stops_at({.mode = MonitorMode::kMax, .patience = 1}, {1, 2, 2}), 2);
}

TEST(StoppingRule, MinDelta) {
  EXPECT_EQ(stops_at({.min_delta = 0.5, .patience = 1}, {3, 2, 1.6}), 2);
  EXPECT_EQ(stops_at({.min_delta = 0.5, .patience = 1}, {3, 2.4, 1.8}), -1);
  // An improvement by exactly the delta is none, as in other trainers.
  EXPECT_EQ(stops_at({.min_delta = 0.5, .patience = 1}, {3, 2.5}), 1);
  EXPECT_EQ(stops_at({.mode = MonitorMode::kMax, .min_delta = 0.5, .patience = 1}, {1, 1.4}), 1);
}

TEST(StoppingRule, Thresholds) {
  std::string reason;
  EXPECT_EQ(stops_at({.stopping_threshold = 0.1}, {3, 0.1, 0.09}, &reason), 2);
  EXPECT_EQ(reason, "val_loss = 0.09 reached the stopping threshold 0.1");
  EXPECT_EQ(stops_at({.divergence_threshold = 10}, {3, 10, 11}, &reason), 2);
  EXPECT_EQ(reason, "val_loss = 11 is beyond the divergence threshold 10");
  EXPECT_EQ(stops_at({.mode = MonitorMode::kMax, .stopping_threshold = 0.9}, {0.5, 0.95}), 1);
  EXPECT_EQ(stops_at({.mode = MonitorMode::kMax, .divergence_threshold = 0.1}, {0.5, 0.05}), 1);
}

TEST(StoppingRule, FiniteValues) {
  std::string reason;
  EXPECT_EQ(stops_at({}, {1, std::nan("")}, &reason), 1);
  EXPECT_EQ(reason, "val_loss = nan is not finite (best so far: 1)");
  EXPECT_EQ(stops_at({}, {std::numeric_limits<double>::infinity()}, &reason), 0);
  EXPECT_EQ(reason, "val_loss = inf is not finite (best so far: none)");
  // NaN is no improvement, and any number improves on it.
  const double nan = std::nan("");
  EXPECT_EQ(stops_at({.patience = 2, .check_finite = false}, {nan, nan}), 1);
  EXPECT_EQ(stops_at({.patience = 2, .check_finite = false}, {nan, 5, nan, 4, nan}), -1);
}

TEST(StoppingRule, GoesOnFromSavedCounters) {
  StoppingRule rule("val_loss", {.patience = 2});
  rule.restore(1, 0.5, 0.5);
  EXPECT_EQ(rule.stop_reason(), "");
  EXPECT_FALSE(rule.observe(0.6));
  EXPECT_NE(rule.stop_reason(), "");
  rule.restore(1, 0.5, 0.5);
  EXPECT_TRUE(rule.observe(0.4));
  EXPECT_EQ(rule.wait_count(), 0);
  EXPECT_EQ(rule.best_score(), 0.4);
}

TEST(StoppingRule, AReasonPasses) {
  const double nan = std::nan("");
  for (const auto& [limits, values] :
       std::vector<std::pair<Limits, std::vector<double>>>{{{.patience = 2}, {5, 6, 7, 4}},
                                                           {{.divergence_threshold = 10}, {5, 11, 4}},
                                                           {{.stopping_threshold = 1}, {5, 0.5, 4}},
                                                           {{}, {5, nan, 4}}}) {
    StoppingRule rule("val_loss", limits);
    bool had_reason = false;
    for (const double value : values) {
      rule.observe(value);
      had_reason = had_reason || !rule.stop_reason().empty();
    }
    EXPECT_TRUE(had_reason);
    EXPECT_EQ(rule.stop_reason(), "");
  }
}

TEST(StoppingRule, SavedCountersAreSeenUnderTheLimitsOfToday) {
  StoppingRule rule("val_loss", {.patience = 4, .divergence_threshold = 1});
  rule.restore(3, 0.5, 0.6);
  EXPECT_EQ(rule.stop_reason(), "");
  rule.restore(0, 0.5, 2);
  EXPECT_EQ(rule.stop_reason(), "val_loss = 2 is beyond the divergence threshold 1");
}

}  // namespace
}  // namespace levin
