#include <levin/callbacks/monitor.h>

#include <gtest/gtest.h>

#include <cmath>

namespace levin {
namespace {

TEST(Monitor, Modes) {
  EXPECT_EQ(parse_monitor_mode("min", "x.mode"), MonitorMode::kMin);
  EXPECT_EQ(parse_monitor_mode("max", "x.mode"), MonitorMode::kMax);
  try {
    parse_monitor_mode("mim", "x.mode");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[config] x.mode must be one of min, max; got 'mim'");
  }
}

TEST(Monitor, Better) {
  const double nan = std::nan("");
  EXPECT_TRUE(is_better(1, 2, MonitorMode::kMin));
  EXPECT_FALSE(is_better(2, 2, MonitorMode::kMin));
  EXPECT_TRUE(is_better(3, 2, MonitorMode::kMax));
  EXPECT_TRUE(is_better(3, nan, MonitorMode::kMin));
  EXPECT_FALSE(is_better(nan, 3, MonitorMode::kMin));
  EXPECT_FALSE(is_better(nan, nan, MonitorMode::kMax));
}

TEST(Monitor, AMissingMetricNamesThoseThereAre) {
  const std::string message =
      missing_metric_error("early_stopping", "val_los", {{"train_acc", 1}, {"val_loss", 2}}).what();
  EXPECT_NE(
      message.find("[early_stopping] the monitored metric 'val_los' was not logged; did you mean 'val_loss'?; valid: "
                   "train_acc, val_loss; hint: "),
      message.npos)
      << message;
  const std::string none = missing_metric_error("early_stopping", "val_los", {}).what();
  EXPECT_NE(none.find("got no metric at all"), none.npos) << none;
}

}  // namespace
}  // namespace levin
