#include <levin/core/base/schema.h>

#include "parse_yaml.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace levin {
namespace {

struct Inner {
  int64_t depth = 2;
  double rate = 0.5;
  static void describe(Schema<Inner>& schema) {
    schema.field("depth", &Inner::depth, "how deep").at_least(1).at_most(9);
    schema.field("rate", &Inner::rate, "how fast").above(0).below(1);
  }
};

struct Options {
  bool flag = false;
  int64_t count = 3;
  double scale = 1e-3;
  std::string mode = "min";
  std::optional<int64_t> limit;
  std::vector<int64_t> sizes = {1, 2};
  std::map<std::string, double> weights;
  Inner inner;
  Config anything;

  static void describe(Schema<Options>& schema) {
    schema.field("flag", &Options::flag, "a switch");
    schema.field("count", &Options::count, "a number").at_least(0);
    schema.field("scale", &Options::scale, "a factor");
    schema.field("mode", &Options::mode, "a choice").one_of({"min", "max"});
    schema.field("limit", &Options::limit, "an optional number").at_least(1);
    schema.field("sizes", &Options::sizes, "a list");
    schema.field("weights", &Options::weights, "a mapping");
    schema.field("inner", &Options::inner, "a struct");
    schema.field("anything", &Options::anything, "any YAML");
  }
};

std::string option_error(const std::string& yaml) {
  try {
    parse_options<Options>(parse(yaml), "section");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SchemaTest, NothingGivenIsTheDefaults) {
  EXPECT_EQ(parse_options<Options>(Config(), "section").count, 3);
  EXPECT_EQ(parse_options<Options>(Config::mapping(), "section").mode, "min");
}

TEST(SchemaTest, ReadsEveryType) {
  const auto options = parse_options<Options>(
      parse("{flag: true, count: 7, scale: 1e-4, mode: max, limit: 5, sizes: [4], weights: {a: 0.5}, "
            "inner: {depth: 3}, anything: [1, {x: y}]}"),
      "section");
  EXPECT_TRUE(options.flag);
  EXPECT_EQ(options.count, 7);
  EXPECT_EQ(options.scale, 1e-4);
  EXPECT_EQ(options.mode, "max");
  EXPECT_EQ(options.limit, 5);
  EXPECT_EQ(options.sizes, std::vector<int64_t>{4});
  EXPECT_EQ(options.weights.at("a"), 0.5);
  EXPECT_EQ(options.inner.depth, 3);
  EXPECT_EQ(options.inner.rate, 0.5);
  EXPECT_EQ(options.anything.to_flow(), "[1, {x: y}]");
}

TEST(SchemaTest, UnknownKeyIsRefusedWithPlaceAndNearestName) {
  const std::string error = option_error("flag: true\ncuont: 4\n");
  EXPECT_NE(error.find("test.yaml:2:1: unknown key 'cuont' in 'section'; did you mean 'count'?; valid: flag, count"),
            std::string::npos)
      << error;
}

TEST(SchemaTest, UnknownKeyOfANestedStructIsRefused) {
  EXPECT_NE(option_error("inner: {dept: 4}")
                .find("test.yaml:1:9: unknown key 'dept' in 'section.inner'; did you mean 'depth'?"),
            std::string::npos);
}

TEST(SchemaTest, WrongTypesAreRefusedWithPathAndValue) {
  EXPECT_EQ(option_error("count: three"), "[config] test.yaml:1:8: section.count: expected an integer; got 'three'");
  EXPECT_EQ(option_error("count: 3.5"), "[config] test.yaml:1:8: section.count: expected an integer; got '3.5'");
  EXPECT_EQ(option_error("count: '3'"), "[config] test.yaml:1:8: section.count: expected an integer; got '3'");
  EXPECT_EQ(option_error("count: 99999999999999999999"),
            "[config] test.yaml:1:8: section.count: expected an integer; got '99999999999999999999'");
  EXPECT_EQ(option_error("scale: fast"), "[config] test.yaml:1:8: section.scale: expected a number; got 'fast'");
  EXPECT_EQ(option_error("flag: 1"), "[config] test.yaml:1:7: section.flag: expected true or false; got '1'");
  EXPECT_EQ(option_error("mode: [min]"), "[config] test.yaml:1:7: section.mode: expected a string; got a list");
  EXPECT_EQ(option_error("sizes: 3"), "[config] test.yaml:1:8: section.sizes: expected list of integer; got '3'");
  EXPECT_EQ(option_error("sizes: [1, x]"), "[config] test.yaml:1:12: section.sizes[1]: expected an integer; got 'x'");
  EXPECT_EQ(option_error("weights: {a: b}"), "[config] test.yaml:1:14: section.weights.a: expected a number; got 'b'");
  EXPECT_EQ(option_error("[1]"), "[config] test.yaml:1:1: section: expected a mapping of options; got a list");
  EXPECT_EQ(option_error("count: null"), "[config] test.yaml:1:8: section.count: expected an integer; got null");
}

TEST(SchemaTest, ValuesOutOfRangeAreRefused) {
  EXPECT_EQ(option_error("count: -1"), "[config] test.yaml:1:8: section.count must be at least 0; got -1");
  EXPECT_EQ(option_error("limit: 0"), "[config] test.yaml:1:8: section.limit must be at least 1; got 0");
  EXPECT_EQ(option_error("mode: mean"), "[config] test.yaml:1:7: section.mode must be one of min, max; got mean");
  EXPECT_EQ(option_error("inner: {depth: 10}"),
            "[config] test.yaml:1:16: section.inner.depth must be at most 9; got 10");
  EXPECT_EQ(option_error("inner: {rate: 1}"), "[config] test.yaml:1:15: section.inner.rate must be below 1; got 1");
  EXPECT_EQ(option_error("inner: {rate: .nan}"),
            "[config] test.yaml:1:15: section.inner.rate must be above 0; got .nan");
}

TEST(SchemaTest, NullLeavesAnOptionalUnset) {
  Options options;
  options.limit = 4;
  schema_of<Options>().apply(options, parse("limit: null"), "section");
  EXPECT_FALSE(options.limit.has_value());
}

TEST(SchemaTest, ValidatesWhatWasSetInCode) {
  Options options;
  EXPECT_NO_THROW(schema_of<Options>().validate(options, "Options"));
  options.mode = "mean";
  try {
    schema_of<Options>().validate(options, "Options");
    FAIL() << "no exception";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[config] Options.mode must be one of min, max; got mean");
  }
}

TEST(SchemaTest, DumpReadsBackTheSame) {
  Options options;
  options.scale = 0.1;
  options.mode = "max";
  options.limit = 2;
  options.weights = {{"a", 1.0 / 3}};
  options.inner.depth = 5;
  const Config dumped = schema_of<Options>().dump(options);
  const auto again = parse_options<Options>(parse(dumped.to_yaml()), "section");
  EXPECT_TRUE(schema_of<Options>().dump(again) == dumped);
  EXPECT_EQ(again.weights.at("a"), 1.0 / 3);
}

TEST(SchemaTest, ResolveAddsDefaultsAndKeepsOrigins) {
  const Config resolved = schema_of<Options>().resolve(parse("{scale: 1E-4, inner: {depth: 3}}"), "section");
  EXPECT_EQ(resolved.find("scale")->text(), "1E-4");
  EXPECT_EQ(resolved.find("scale")->origin().describe(), "test.yaml:1:9");
  EXPECT_EQ(resolved.find("count")->text(), "3");
  EXPECT_EQ(resolved.find("count")->origin().describe(), "default");
  EXPECT_EQ(resolved.find("inner")->to_flow(), "{depth: 3, rate: 0.5}");
  EXPECT_EQ(resolved.entries().size(), schema_of<Options>().names().size());
  EXPECT_THROW(schema_of<Options>().resolve(parse("{scale: x}"), "section"), ConfigError);
}

TEST(SchemaTest, FieldsAreDocumented) {
  const auto fields = schema_of<Options>().fields();
  ASSERT_EQ(fields.size(), 9U);
  EXPECT_EQ(fields[1].name, "count");
  EXPECT_EQ(fields[1].type, "integer");
  EXPECT_EQ(fields[1].default_value, "3");
  EXPECT_EQ(fields[1].constraint, "at least 0");
  EXPECT_EQ(fields[1].doc, "a number");
  EXPECT_EQ(fields[2].default_value, "0.001");
  EXPECT_EQ(fields[4].type, "integer or null");
  EXPECT_EQ(fields[5].type, "list of integer");
  EXPECT_EQ(fields[5].default_value, "[1, 2]");
  EXPECT_EQ(schema_of<Inner>().fields()[0].constraint, "at least 1, at most 9");
}

TEST(ConfigCodecTest, BooleansHaveYamlsWords) {
  for (const char* word : {"true", "True", "TRUE", "yes", "on"})
    EXPECT_TRUE(ConfigCodec<bool>::parse(parse(word), "x")) << word;
  for (const char* word : {"false", "False", "FALSE", "no", "off"})
    EXPECT_FALSE(ConfigCodec<bool>::parse(parse(word), "x")) << word;
  EXPECT_THROW(ConfigCodec<bool>::parse(parse("'true'"), "x"), ConfigError);
}

TEST(ConfigCodecTest, NumbersRoundTrip) {
  for (const double value : {0.0, 1.0, -2.5, 0.1, 1e-300, 1.0 / 3, std::numeric_limits<double>::max(),
                             std::numeric_limits<double>::denorm_min()})
    EXPECT_EQ(ConfigCodec<double>::parse(parse(ConfigCodec<double>::dump(value).to_flow()), "x"), value);
  EXPECT_EQ(ConfigCodec<double>::parse(parse(".inf"), "x"), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(ConfigCodec<double>::parse(parse(".nan"), "x")));
  EXPECT_EQ(ConfigCodec<double>::dump(-std::numeric_limits<double>::infinity()).text(), "-.inf");
  EXPECT_EQ(ConfigCodec<double>::parse(parse("+3"), "x"), 3.0);
  EXPECT_THROW(ConfigCodec<double>::parse(parse("1e999"), "x"), ConfigError);
  EXPECT_THROW(ConfigCodec<double>::parse(parse("+-3"), "x"), ConfigError);
}

TEST(ConfigCodecTest, StringsThatLookLikeSomethingElseAreQuoted) {
  for (const char* text :
       {"", "null", "~", "true", "yes", "3", "1e5", ".nan", "a: b", "- x", "plain", "[1]", "two\nlines"}) {
    const Config read = parse(ConfigCodec<std::string>::dump(text).to_flow());
    ASSERT_TRUE(read.is_scalar()) << text;
    EXPECT_EQ(read.text(), text);
  }
  EXPECT_TRUE(ConfigCodec<std::string>::dump("3").quoted());
  EXPECT_FALSE(ConfigCodec<std::string>::dump("plain").quoted());
}

}  // namespace
}  // namespace levin
