#include <levin/loggers/wandb_system.h>

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace levin {
namespace {

std::map<std::string, std::string> items_of(const std::vector<MetricValue>& values) {
  std::map<std::string, std::string> items;
  for (const auto& item : wandb::system_items(values, 8)) items[item.key] = item.json;
  return items;
}

using Items = std::map<std::string, std::string>;

TEST(WandbSystem, TheProcessorsTimeIsAShareOfAllCores) {
  EXPECT_EQ(items_of({{"cpu/utilization_percent", 400}}), (Items{{"cpu", "50"}}));
  EXPECT_EQ(items_of({{"rank12/cpu/utilization_percent", 4}}), (Items{{"cpu/l:rank12", "0.5"}}));
}

TEST(WandbSystem, SharesAreOfTheLimitOfTheSameGpu) {
  EXPECT_EQ(items_of({{"gpu1/power_watts", 100}, {"gpu0/power_limit_watts", 200}}),
            (Items{{"gpu.1.powerWatts", "100"}, {"gpu.0.enforcedPowerLimitWatts", "200"}}));
  EXPECT_EQ(items_of({{"gpu10/power_watts", 100}, {"gpu10/power_limit_watts", 0}}),
            (Items{{"gpu.10.powerWatts", "100"}, {"gpu.10.enforcedPowerLimitWatts", "0"}}));
}

TEST(WandbSystem, ThePrefixOfTheLoggerIsNoPartOfTheNames) {
  const std::vector<MetricValue> values = {
      {"big-gpu1/power_watts", 50}, {"big-gpu1/power_limit_watts", 200}, {"big", 1}};
  Items items;
  for (const auto& item : wandb::system_items(values, 8, "big")) items[item.key] = item.json;
  EXPECT_EQ(
      items,
      (Items{{"gpu.1.powerWatts", "50"}, {"gpu.1.enforcedPowerLimitWatts", "200"}, {"gpu.1.powerPercent", "25"}}));
}

TEST(WandbSystem, NamesThatOnlyResembleDeviceStatisticsAreNone) {
  for (const char* name : {"loss", "gpu/power_watts", "gpux/power_watts", "gpu1/", "gpu1", "rank/cpu/threads", "rank1/",
                           "my/cpu/threads", "gpu1/power_watts_of_mine", "rank1/rank2/cpu/threads", ""})
    EXPECT_EQ(items_of({{name, 1}}), Items{}) << name;
}

}  // namespace
}  // namespace levin
