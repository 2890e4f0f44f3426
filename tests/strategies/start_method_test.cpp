#include <levin/core/base/error.h>
#include <levin/core/options/registries.h>
#include <levin/strategies/ddp/ddp.h>
#include <levin/strategies/ddp/ddp2.h>

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace levin {
namespace {

std::shared_ptr<Strategy> make_strategy(const std::string& name, const std::string& options = "{}") {
  return registries().strategies.make(name, Config::parse(options, {}), "strategy");
}

TEST(StartMethod, IsWhatTheNamesOfAFamilySet) {
  for (const std::string family : {"ddp", "sharded", "pipeline"}) {
    EXPECT_EQ(make_strategy(family)->name(), family);
    for (const std::string suffix : {"_spawn", "_threads"}) {
      const std::string name = family + suffix;
      const auto strategy = make_strategy(name);
      EXPECT_EQ(strategy->name(), name);
      EXPECT_EQ(strategy->ranks_are_threads(), suffix == "_threads");
      EXPECT_FALSE(strategy->capabilities().several_nodes);
      EXPECT_EQ(std::static_pointer_cast<Strategy>(strategy->rebuild())->name(), name);
    }
    EXPECT_EQ(make_strategy(family, "{start_method: thread}")->name(), family + "_threads");
    EXPECT_EQ(make_strategy(family + "_threads", "{start_method: fork}")->name(), family + "_spawn");
  }
  EXPECT_EQ(make<Ddp>({.start_method = StartMethod::kThread})->name(), "ddp_threads");
}

TEST(StartMethod, OfDdp2IsSubprocess) {
  try {
    make<Ddp2>({.start_method = StartMethod::kThread})->prepare({.devices = {at::kCPU}});
    FAIL() << "no exception";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("got start_method: thread; valid: subprocess"));
  }
}

}  // namespace
}  // namespace levin
