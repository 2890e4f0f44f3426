#include <levin/core/cli/cli_arguments.h>

#include <levin/core/base/error.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace levin {
namespace {

CliArguments parse(std::vector<const char*> words) {
  words.insert(words.begin(), "/usr/bin/program");
  return parse_arguments(static_cast<int>(words.size()), words.data(), {"fit", "test"});
}

/// "path=value path=value"
std::string settings_of(const std::vector<const char*>& words) {
  std::string text;
  for (const auto& setting : parse(words).settings)
    text += (text.empty() ? "" : " ") + setting.path + "=" + setting.value.to_flow();
  return text;
}

std::string error_of(const std::vector<const char*>& words) {
  try {
    parse(words);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CliArgumentsTest, NothingGiven) {
  const auto arguments = parse({});
  EXPECT_EQ(arguments.program, "program");
  EXPECT_EQ(arguments.command, "");
  EXPECT_FALSE(arguments.help);
}

TEST(CliArgumentsTest, CommandAndFiles) {
  const auto arguments = parse({"fit", "--config", "a.yaml", "--config=b.yaml"});
  EXPECT_EQ(arguments.command, "fit");
  EXPECT_EQ(arguments.config_files, (std::vector<std::string>{"a.yaml", "b.yaml"}));
  EXPECT_EQ(parse({"--config", "fit", "test"}).command, "test");
}

TEST(CliArgumentsTest, SettingsInEveryForm) {
  EXPECT_EQ(settings_of({"fit", "--trainer.max_epochs=3", "--model.hidden", "256", "--seed=1", "--ckpt", "last"}),
            "trainer.max_epochs=3 model.hidden=256 seed=1 ckpt=last");
  EXPECT_EQ(settings_of({"fit", "--trainer.strategy={name: ddp, bucket_cap_mb: 5}"}),
            "trainer.strategy={name: ddp, bucket_cap_mb: 5}");
  EXPECT_EQ(settings_of({"fit", "--trainer.callbacks", "[{early_stopping: {monitor: val_loss}}]"}),
            "trainer.callbacks=[{early_stopping: {monitor: val_loss}}]");
  EXPECT_EQ(settings_of({"fit", "--data.root=/a=b"}), "data.root=/a=b");
}

TEST(CliArgumentsTest, NegativeNumbersAreValues) {
  EXPECT_EQ(settings_of({"fit", "--trainer.max_steps", "-1", "--trainer.devices=-1"}),
            "trainer.max_steps=-1 trainer.devices=-1");
}

TEST(CliArgumentsTest, FlagWithoutAValueIsTrue) {
  EXPECT_EQ(settings_of({"fit", "--trainer.fast_dev_run", "--trainer.detect_anomaly"}),
            "trainer.fast_dev_run=true trainer.detect_anomaly=true");
  EXPECT_EQ(parse({"--trainer.fast_dev_run", "fit"}).command, "fit");
  EXPECT_EQ(settings_of({"--trainer.fast_dev_run", "fit"}), "trainer.fast_dev_run=true");
}

TEST(CliArgumentsTest, ValuesThatAreNoYamlAreText) {
  EXPECT_EQ(parse({"fit", "--data.root", "*.txt"}).settings[0].value.text(), "*.txt");
  EXPECT_EQ(parse({"fit", "--data.root=@home"}).settings[0].value.text(), "@home");
}

TEST(CliArgumentsTest, TextThatYamlWouldChangeIsTakenAsItIs) {
  for (const char* text :
       {"runs #2",     "--- x",     "%x",    "# x",  "two\nlines", "two\n\nlines", "!tag x", "&anchor x",   " x ",
        "x\n",         " ",         "\t",    "|",    "> x",        "---",          "...",    "'a' and 'b'", "\"a\" # b",
        "null # none", "3 # three", "*.txt", "a, b", "C:\\runs",   "don't",        "\x01"}) {
    const std::string adjacent = std::string("--a.b=") + text;
    EXPECT_EQ(parse({"fit", adjacent.c_str()}).settings[0].value.text(), text);
    const bool is_option = std::string(text).starts_with("--");  // which is none where a value is the next word
    if (!is_option) EXPECT_EQ(parse({"fit", "--a.b", text}).settings[0].value.text(), text);
  }
}

TEST(CliArgumentsTest, WhatYamlSaysOfWordsAndQuotationsStays) {
  const auto value_of = [](const char* text) { return parse({"fit", "--a", text}).settings[0].value; };
  for (const char* text : {"null", "~", "Null", "NULL", " null "}) EXPECT_TRUE(value_of(text).is_null()) << text;
  for (const char* text : {"3", " 3", "-1e-3 ", "true", " false "}) {
    EXPECT_FALSE(value_of(text).quoted()) << text;
    EXPECT_EQ(value_of(text).text().find(' '), std::string::npos) << text;
  }
  EXPECT_EQ(value_of("\"null\"").to_flow(), "\"null\"");
  EXPECT_EQ(value_of("'it''s #1'").text(), "it's #1");
  EXPECT_EQ(value_of("\"a\\tb\\\"\"").text(), "a\tb\"");
  EXPECT_EQ(value_of("\"\"").text(), "");
  EXPECT_TRUE(value_of("[1, 2]").is_sequence());
  EXPECT_TRUE(value_of("a: 1\nb: 2").is_mapping());
}

TEST(CliArgumentsTest, Switches) {
  EXPECT_TRUE(parse({"fit", "--print_config"}).print_config);
  EXPECT_TRUE(parse({"fit", "--print-config"}).print_config);
  EXPECT_TRUE(parse({"--version"}).version);
  EXPECT_TRUE(parse({"--help"}).help);
  EXPECT_TRUE(parse({"-h"}).help);
  EXPECT_TRUE(parse({"fit", "--help"}).help);
}

TEST(CliArgumentsTest, HelpTakesASection) {
  EXPECT_EQ(parse({"--help", "trainer"}).help_topic, "trainer");
  EXPECT_EQ(parse({"fit", "--help", "trainer"}).help_topic, "trainer");
  EXPECT_EQ(parse({"fit", "--help"}).help_topic, "");
  EXPECT_EQ(parse({"fit", "--help"}).command, "fit");
}

TEST(CliArgumentsTest, LocalRankIsAccepted) {
  EXPECT_EQ(settings_of({"fit", "--local_rank", "1"}), "");
  EXPECT_EQ(settings_of({"fit", "--local-rank=1"}), "");
  EXPECT_EQ(settings_of({"fit", "--local_rank=1", "--seed", "2"}), "seed=2");
  EXPECT_EQ(parse({"fit", "--local_rank", "1"}).local_rank, "1");
  EXPECT_EQ(parse({"fit", "--seed=2", "--local-rank=3"}).local_rank, "3");
  EXPECT_EQ(parse({"fit"}).local_rank, "");
}

TEST(CliArgumentsTest, MistakesAreRefused) {
  EXPECT_NE(error_of({"fti"}).find("unknown command 'fti'; did you mean 'fit'?; valid: fit, test"), std::string::npos);
  EXPECT_NE(error_of({"fit", "now"}).find("unexpected argument 'now'"), std::string::npos);
  EXPECT_NE(error_of({"fit", "max_epochs=3"}).find("unexpected argument 'max_epochs=3'"), std::string::npos);
  EXPECT_NE(error_of({"fit", "-x"}).find("unexpected argument '-x'"), std::string::npos);
  EXPECT_NE(error_of({"fit", "--config"}).find("'--config' is missing"), std::string::npos);
  for (const std::string option : {"--trainer.max_epochs", "--seed", "--config"})
    EXPECT_EQ(error_of({"fit", (option + "=").c_str(), "--trainer.devices=1"}),
              "[config] command line: there is no value after '" + option +
                  "='; hint: null is no value, '\"\"' (with both kinds of quotation marks) an empty text");
  EXPECT_EQ(settings_of({"fit", "--name=\"\"", "--limit=null"}), "name=\"\" limit=null");
}

}  // namespace
}  // namespace levin
