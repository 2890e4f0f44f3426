#include <levin/core/base/config.h>

#include <levin/core/base/error.h>

#include "parse_yaml.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace levin {
namespace {

/// The message of the ConfigError that a call throws.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ConfigTest, ParsesAllKinds) {
  const Config config = parse("a: 1\nb: [x, 'y']\nc: {d: null}\ne:\n");
  ASSERT_TRUE(config.is_mapping());
  EXPECT_EQ(config.find("a")->text(), "1");
  EXPECT_FALSE(config.find("a")->quoted());
  ASSERT_TRUE(config.find("b")->is_sequence());
  EXPECT_FALSE(config.find("b")->items()[0].quoted());
  EXPECT_TRUE(config.find("b")->items()[1].quoted());
  EXPECT_TRUE(config.find("c")->find("d")->is_null());
  EXPECT_TRUE(config.find("e")->is_null());
  EXPECT_EQ(config.find("f"), nullptr);
  EXPECT_EQ(config.find("a")->find("b"), nullptr);
}

TEST(ConfigTest, EmptyTextIsNull) {
  EXPECT_TRUE(parse("").is_null());
  EXPECT_TRUE(parse("# only a comment\n").is_null());
}

TEST(ConfigTest, RemembersWhereEachNodeWasWritten) {
  const Config config = parse("trainer:\n  max_epochs: 3\n  callbacks:\n    - timer\n");
  const Config& trainer = *config.find("trainer");
  EXPECT_EQ(trainer.find("max_epochs")->origin().describe(), "test.yaml:2:15");
  EXPECT_EQ(trainer.entries()[0].origin.describe(), "test.yaml:2:3");
  EXPECT_EQ(trainer.find("callbacks")->items()[0].origin().describe(), "test.yaml:4:7");
}

TEST(ConfigTest, FixedOriginHidesLines) {
  const Config config = Config::parse("{a: 1}", {.source = "command line"}, true);
  EXPECT_EQ(config.find("a")->origin().describe(), "command line");
  EXPECT_EQ(config.entries()[0].origin.describe(), "command line");
}

TEST(ConfigTest, OriginOfNothingIsDefault) { EXPECT_EQ(Config().origin().describe(), "default"); }

TEST(ConfigTest, TextThatIsNotYamlIsRefusedWithItsPlace) {
  EXPECT_NE(error_of([] { parse("a: 1\nb: [1, 2\n"); }).find("[config] test.yaml:"), std::string::npos);
  EXPECT_NE(error_of([] { parse("a: 1\n  b: 2\n"); }).find("test.yaml:2:4: not YAML"), std::string::npos);
}

TEST(ConfigTest, KeyGivenTwiceIsRefused) {
  EXPECT_EQ(error_of([] { parse("a: 1\nb: 2\na: 3\n"); }), "[config] test.yaml:3:1: the key 'a' is given twice");
}

TEST(ConfigTest, LoadReadsAFile) {
  const std::string path = ::testing::TempDir() + "/config_test_" + std::to_string(getpid()) + ".yaml";
  std::ofstream(path) << "seed: 42\n";
  const Config config = Config::load(path);
  EXPECT_EQ(config.find("seed")->origin().describe(), path + ":1:7");
  std::filesystem::remove(path);
}

TEST(ConfigTest, LoadNamesTheFileItCannotRead) {
  EXPECT_NE(error_of([] { Config::load("no/such.yaml"); }).find("cannot read the configuration file 'no/such.yaml'"),
            std::string::npos);
  EXPECT_NE(error_of([] { Config::load("/"); }).find("cannot read"), std::string::npos);
}

TEST(ConfigTest, SetPathMakesMappingsOnTheWay) {
  Config config;
  config.set_path("trainer.max_epochs", Config::scalar("3"));
  config.set_path("seed", Config::scalar("1"));
  EXPECT_EQ(config.to_flow(), "{trainer: {max_epochs: 3}, seed: 1}");
}

TEST(ConfigTest, SetPathTurnsAShortNameIntoAMapping) {
  Config config = parse("strategy: ddp\n");
  config.set_path("strategy.bucket_cap_mb", Config::scalar("5", false, {.source = "command line"}));
  EXPECT_EQ(config.to_flow(), "{strategy: {name: ddp, bucket_cap_mb: 5}}");
  EXPECT_EQ(config.find("strategy")->find("name")->origin().describe(), "test.yaml:1:11");
}

TEST(ConfigTest, SetPathReplacesNull) {
  Config config = parse("trainer:\n");
  config.set_path("trainer.max_steps", Config::scalar("7"));
  EXPECT_EQ(config.to_flow(), "{trainer: {max_steps: 7}}");
}

TEST(ConfigTest, SetPathInsideAListIsRefused) {
  Config config = parse("callbacks: [timer]\n");
  EXPECT_NE(error_of([&] { config.set_path("callbacks.x", Config::scalar("1")); }).find("inside a list"),
            std::string::npos);
}

TEST(ConfigTest, MergeLaysLaterOverEarlier) {
  Config config = parse("a: {x: 1, y: 2}\nb: [1, 2]\nc: 1\n");
  config.merge(parse("a: {y: 3, z: 4}\nb: [9]\nd: 5\n"));
  EXPECT_EQ(config.to_flow(), "{a: {x: 1, y: 3, z: 4}, b: [9], c: 1, d: 5}");
}

TEST(ConfigTest, MergeReplacesWhatIsNoMapping) {
  Config config = parse("strategy: {name: ddp}\n");
  config.merge(parse("strategy: auto\n"));
  EXPECT_EQ(config.to_flow(), "{strategy: auto}");
}

TEST(ConfigTest, SetAndErase) {
  Config config;
  config.set("a", Config::scalar("1"));
  config.set("b", Config::scalar("2"));
  config.set("a", Config::scalar("3"));
  EXPECT_EQ(config.to_flow(), "{a: 3, b: 2}");
  config.erase("a");
  config.erase("not there");
  EXPECT_EQ(config.to_flow(), "{b: 2}");
}

TEST(ConfigTest, YamlReadsBackTheSame) {
  const Config config = parse(
      "a: 1\nb: '1'\nc: \"null\"\nd: [x, {y: [1, 2]}, null]\ne: {f: '', g: 'a: b # c', h: \"two\\nlines\"}\n"
      "i: []\nj: {}\nk: 00:01:00:00\nl: 32-true\nm: '*.txt'\nn: 'true'\n");
  EXPECT_TRUE(parse(config.to_yaml()) == config) << config.to_yaml();
  EXPECT_TRUE(parse(config.to_flow()) == config) << config.to_flow();
  EXPECT_TRUE(parse(config.to_yaml(true)) == config) << config.to_yaml(true);
}

TEST(ConfigTest, FlowIsOneLineHoweverLong) {
  std::vector<Config> items;
  for (int i = 0; i < 100; ++i) items.push_back(Config::scalar("item_" + std::to_string(i)));
  const Config list = Config::sequence(items);
  EXPECT_EQ(list.to_flow().find('\n'), std::string::npos);
  EXPECT_TRUE(parse(list.to_flow()) == list);
}

TEST(ConfigTest, OriginsAreWrittenBesideValues) {
  Config config =
      parse("trainer:\n  max_epochs: 3\n  callbacks:\n    - timer\n    - early_stopping: {monitor: loss}\n");
  config.set_path("seed", Config::scalar("42", false, {.source = "command line --seed"}));
  config.set("data", Config::mapping());
  EXPECT_EQ(config.to_yaml(true),
            "trainer:\n"
            "  max_epochs: 3                                     # test.yaml:2:15\n"
            "  callbacks:\n"
            "    - timer                                         # test.yaml:4:7\n"
            "    - early_stopping:\n"
            "        monitor: loss                               # test.yaml:5:33\n"
            "seed: 42                                            # command line --seed\n"
            "data: {}                                            # default\n");
}

TEST(ConfigTest, EqualityIgnoresOrigins) {
  EXPECT_TRUE(parse("a: 1") == parse("\n\na: 1"));
  EXPECT_FALSE(parse("a: 1") == parse("a: '1'"));
  EXPECT_FALSE(parse("a: 1") == parse("b: 1"));
}

TEST(ConfigTest, DescribesItselfForMessages) {
  EXPECT_EQ(parse("x").describe(), "'x'");
  EXPECT_EQ(parse("[x]").describe(), "a list");
  EXPECT_EQ(parse("{x: 1}").describe(), "a mapping");
  EXPECT_EQ(parse("~").describe(), "null");
}

}  // namespace
}  // namespace levin
