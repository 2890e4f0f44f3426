#include <levin/core/metrics/metric_map.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>

namespace levin {
namespace {

std::string message_of_missing(const MetricMap& metrics, const std::string& name) {
  try {
    metrics.at(name);
  } catch (const std::out_of_range& error) {
    return error.what();
  }
  return "";
}

TEST(MetricMap, SaysWhichMetricIsMissingAndWhichThereAre) {
  EXPECT_EQ(message_of_missing({{"train_loss", 1}, {"val_loss", 2}}, "val_los"),
            "[metrics] there is no metric 'val_los'; did you mean 'val_loss'?; valid: train_loss, val_loss");
  EXPECT_EQ(message_of_missing({}, "x"), "[metrics] there is no metric 'x'; none was logged");
}

TEST(MetricMap, IsAMap) {
  MetricMap metrics{{"a", 1}};
  metrics.at("a") = 3;
  metrics["b"] = 4;
  std::map<std::string, double> plain = metrics;
  EXPECT_EQ(plain, (std::map<std::string, double>{{"a", 3}, {"b", 4}}));
  plain["c"] = 5;
  metrics = plain;
  EXPECT_EQ(metrics.at("c"), 5);
  EXPECT_EQ(metrics.size(), 3U);
}

}  // namespace
}  // namespace levin
