#include <levin/core/base/config.h>

#include <levin/core/base/error.h>

#include "parse_yaml.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

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

TEST(ConfigTest, AKeyThatIsNoTextIsRefused) {
  EXPECT_EQ(error_of([] { parse("? [a, b]\n: 1\n"); }), "[config] test.yaml:1:3: a key must be text; got a list");
  EXPECT_EQ(error_of([] { parse("null: 1\n"); }), "[config] test.yaml:1:1: a key must be text; got null");
}

TEST(ConfigTest, ASecondDocumentIsRefused) {
  EXPECT_EQ(parse("---\na: 1\n...\n").to_flow(), "{a: 1}");
  EXPECT_EQ(error_of([] { parse("a: 1\n---\nb: 2\n"); }),
            "[config] test.yaml:2:1: a second document begins here; valid: one document");
}

TEST(ConfigTest, AliasesStandForWhatIsAnchored) {
  const Config config = parse("a: &x {y: [1, 2]}\nb: *x\n&k key: &v 3\nc: [*v, *k]\n");
  EXPECT_EQ(config.to_flow(), "{a: {y: [1, 2]}, b: {y: [1, 2]}, key: 3, c: [3, key]}");
  EXPECT_EQ(config.find("b")->find("y")->origin().describe(), "test.yaml:1:11");  // where it is written
  EXPECT_NE(error_of([] { parse("a: *x\n"); }).find("test.yaml:1:4: not YAML"), std::string::npos);
}

TEST(ConfigTest, AnAliasOfWhatItIsAPartOfIsRefused) {
  for (const char* yaml : {"trainer: &a {max_epochs: *a}\n", "trainer: &a\n  - 1\n  - [*a]\n", "&a [*a]\n"})
    EXPECT_NE(error_of([&] { parse(yaml); }).find("an alias stands for what it is a part of"), std::string::npos)
        << yaml;
}

TEST(ConfigTest, AliasesThatRepeatEachOtherAreBounded) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  std::string chain = "a0: &a0 [x]\n";
  for (int i = 1; i < 300; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    const std::string start = "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    chain += start + before + "]\n";
    bomb += start + before;
    for (int j = 1; j < 10; ++j) bomb += ", " + before;
    bomb += "]\n";
  }
  EXPECT_NE(error_of([&] { parse(bomb); })
                .find("test.yaml:5:5: more than a configuration may hold; valid: at most 200000 "
                      "values and 16 MiB of text"),
            std::string::npos)
      << error_of([&] { parse(bomb); });
  // Each adds a level to the one before.
  EXPECT_NE(error_of([&] { parse(chain); })
                .find("test.yaml:100:12: lists and mappings lie too deep inside each other; "
                      "valid: at most 100 levels"),
            std::string::npos)
      << error_of([&] { parse(chain); });
  const std::string text =
      "a: &a " + std::string(1 << 20, 'x') + "\nb: [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n";
  EXPECT_NE(error_of([&] { parse(text); }).find("16 MiB of text"), std::string::npos);
}

TEST(ConfigTest, DepthIsBounded) {
  const auto nested = [](size_t levels, const std::string& open, const std::string& close) {
    std::string yaml;
    for (size_t i = 0; i < levels; ++i) yaml += open;
    yaml += "1";
    for (size_t i = 0; i < levels; ++i) yaml += close;
    return yaml;
  };
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{a: ", "}"), std::pair("- ", "")}) {
    EXPECT_EQ(error_of([&] { parse(nested(Config::kMaxDepth, open, close)); }), "no error") << open;
    for (const size_t levels : {Config::kMaxDepth + 1, size_t{50'000}})
      EXPECT_NE(error_of([&] { parse(nested(levels, open, close)); }).find("valid: at most 100 levels"),
                std::string::npos)
          << open;
  }
  Config config;
  std::string path = "a";
  for (size_t i = 1; i < Config::kMaxDepth; ++i) path += ".a";
  config.set_path(path, Config::scalar("1"));
  path += ".a";
  EXPECT_NE(
      error_of([&] { config.set_path(path, Config::scalar("1")); }).find("a path of 101 keys; valid: at most 100"),
      std::string::npos);
}

TEST(ConfigTest, ManyKeysTakeNoTime) {
  // Of the processor, which other programs may share.
  const auto clocks_for = [](int keys) {
    std::string yaml;
    for (int i = 0; i < keys; ++i) yaml += "key_" + std::to_string(i) + ": 1\n";
    const std::clock_t begin = std::clock();
    Config config = parse(yaml);
    config.merge(parse(yaml));
    Config copy = Config::mapping();
    for (const auto& entry : config.entries()) copy.set(entry.key, entry.value);
    EXPECT_EQ(copy.entries().size(), static_cast<size_t>(keys));
    EXPECT_NE(copy.find("key_" + std::to_string(keys - 1)), nullptr);
    return std::clock() - begin;
  };
  // Where each look-up compares with each key it is a hundredfold.
  const std::clock_t few = clocks_for(9'000);
  EXPECT_LT(clocks_for(90'000), 40 * few);
}

TEST(ConfigTest, AFileBeyondTheBoundIsRefused) {
  const std::string path = ::testing::TempDir() + "/config_test_" + std::to_string(getpid()) + ".yaml";
  std::ofstream(path) << "seed: 42\n";
  std::filesystem::resize_file(path, (16 << 20) + 1);
  EXPECT_EQ(error_of([&] { Config::load(path); }),
            "[config] " + path + " is too large for a configuration file; valid: at most 16 MiB");
  std::filesystem::remove(path);
}

TEST(ConfigTest, PipesAndDevicesAreRefusedAndNotWaitedFor) {
  const std::string pipe = ::testing::TempDir() + "/config_test_pipe_" + std::to_string(getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {std::string("/dev/zero"), pipe})
    EXPECT_EQ(error_of([&] { Config::load(path); }),
              "[config] " + path + " is a pipe or a device; valid: a configuration file");
  std::filesystem::remove(pipe);
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
  EXPECT_NE(error_of([] { Config::load("/"); }).find("'/' is a folder"), std::string::npos);
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

TEST(ConfigTest, MergedValuesHaveTheOriginsOfTheirSources) {
  const auto parse_as = [](const std::string& yaml, const char* source) {
    return Config::parse(yaml, {.source = source}, /*fixed_origin=*/true);
  };
  Config config = parse_as("a: {x: 1, y: 2}\nb: {z: 1}\n", "file");
  config.merge(parse_as("a: {y: 3}\n", "command line"));
  const Config& a = *config.find("a");
  EXPECT_EQ(a.find("x")->origin().describe(), "file");
  EXPECT_EQ(a.find("y")->origin().describe(), "command line");
  EXPECT_EQ(a.entries()[1].origin.describe(), "command line");
  EXPECT_EQ(a.origin().describe(), "file and command line");
  EXPECT_EQ(config.find("b")->origin().describe(), "file");
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
  config.set("c", Config::scalar("4"));
  config.erase("a");
  config.erase("not there");
  EXPECT_EQ(config.to_flow(), "{b: 2, c: 4}");
  EXPECT_EQ(config.find("a"), nullptr);
  EXPECT_EQ(config.find("c")->text(), "4");
  config["b"] = Config::scalar("5");
  config.set("a", Config::scalar("6"));
  EXPECT_EQ(config.to_flow(), "{b: 5, c: 4, a: 6}");
}

TEST(ConfigTest, YamlReadsBackTheSame) {
  const Config config = parse(
      "a: 1\nb: '1'\nc: \"null\"\nd: [x, {y: [1, 2]}, null]\ne: {f: '', g: 'a: b # c', h: \"two\\nlines\"}\n"
      "i: []\nj: {}\nk: 00:01:00:00\nl: 32-true\nm: '*.txt'\nn: 'true'\n");
  EXPECT_TRUE(parse(config.to_yaml()) == config) << config.to_yaml();
  EXPECT_TRUE(parse(config.to_flow()) == config) << config.to_flow();
  EXPECT_TRUE(parse(config.to_yaml(true)) == config) << config.to_yaml(true);
}

TEST(ConfigTest, TextsAreUnicode) {
  EXPECT_EQ(parse("a: caf\xc3\xa9").find("a")->text(), "caf\xc3\xa9");
  for (const char* text : {"a: caf\xe9", "caf\xe9: 1", "[\xff\xfe\xff]"}) {
    try {
      parse(text);
      FAIL() << text;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("test.yaml:1:"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("this text is not UTF-8"), std::string::npos) << error.what();
    }
  }
}

TEST(ConfigTest, CarriageReturnsStayWhatTheyAre) {
  const Config config = parse("a: [x\r]\n\"b\\r\": 2\n");
  EXPECT_EQ(config.find("a")->items().front().text(), "x\r");
  EXPECT_EQ(parse(config.to_yaml()).to_flow(), config.to_flow()) << config.to_yaml();
  EXPECT_EQ(parse(config.to_flow()).to_flow(), config.to_flow()) << config.to_flow();
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
  EXPECT_EQ(parse(std::string(100'000, 'x')).describe(), "'" + std::string(200, 'x') + "...'");
}

}  // namespace
}  // namespace levin
