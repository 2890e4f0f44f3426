#include <levin/core/base/schema.h>

#include "parse_yaml.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
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

template <class T = Options>
std::string option_error(const std::string& yaml) {
  try {
    parse_options<T>(parse(yaml), "section");
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
            "[config] test.yaml:1:8: section.count must be at most 9223372036854775807; got 99999999999999999999");
  EXPECT_EQ(option_error("count: -99999999999999999999"),
            "[config] test.yaml:1:8: section.count must be at least 0; got -99999999999999999999")
      << "the field's limit, where it has one on that side";
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

enum class Activation { kRelu, kGelu = 5, kTanh };

struct EveryScalar {
  int small = 3;
  uint8_t byte = 7;
  size_t size = 9;
  float rate = 0.1F;
  Activation activation = Activation::kGelu;
  std::filesystem::path folder = "runs";
  std::optional<int> limit = {};
  std::optional<Activation> head = {};
  std::vector<int> widths = {1, 2};
  std::vector<float> scales = {0.1F, 2};
  std::vector<Activation> layers = {Activation::kTanh};
  std::vector<std::filesystem::path> files = {};
  std::array<int, 2> kernel = {3, 3};
  std::map<std::string, Activation> by_name = {};

  static void describe(Schema<EveryScalar>& schema) {
    using Options = EveryScalar;
    const std::vector<std::pair<std::string, Activation>> names = {{"relu", Activation::kRelu},
                                                                   {"gelu", Activation::kGelu}};
    schema.field("small", &Options::small, "an int").at_least(-1);
    schema.field("byte", &Options::byte, "a byte").at_most(200);
    schema.field("size", &Options::size, "a size");
    schema.field("rate", &Options::rate, "a float").above(0);
    schema.field("activation", &Options::activation, "a choice", names);
    schema.field("folder", &Options::folder, "a path");
    schema.field("limit", &Options::limit, "an optional int").at_least(1);
    schema.field("head", &Options::head, "an optional choice", names);
    schema.field("widths", &Options::widths, "ints");
    schema.field("scales", &Options::scales, "floats");
    schema.field("layers", &Options::layers, "choices", {{"relu", Activation::kRelu}, {"tanh", Activation::kTanh}});
    schema.field("files", &Options::files, "paths");
    schema.field("kernel", &Options::kernel, "two ints");
    schema.field("by_name", &Options::by_name, "choices by name", names);
  }
};

std::string scalar_error(const std::string& yaml) {
  try {
    parse_options<EveryScalar>(parse(yaml), "model");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SchemaTest, ReadsTheOtherScalarsOfCpp) {
  const auto options = parse_options<EveryScalar>(
      parse(
          "{small: -1, byte: 200, size: 18446744073709551615, rate: 0.25, activation: relu, folder: /data/x, limit: 4, "
          "head: gelu, widths: [4, -5], scales: [1e-3], layers: [tanh, relu], files: [a, b/c], kernel: [5, 1], "
          "by_name: {a: gelu}}"),
      "model");
  EXPECT_EQ(options.small, -1);
  EXPECT_EQ(options.byte, 200);
  EXPECT_EQ(options.size, std::numeric_limits<size_t>::max());
  EXPECT_EQ(options.rate, 0.25F);
  EXPECT_EQ(options.activation, Activation::kRelu);
  EXPECT_EQ(options.folder, std::filesystem::path("/data/x"));
  EXPECT_EQ(options.limit, 4);
  EXPECT_EQ(options.head, Activation::kGelu);
  EXPECT_EQ(options.widths, (std::vector<int>{4, -5}));
  EXPECT_EQ(options.scales, std::vector<float>{1e-3F});
  EXPECT_EQ(options.layers, (std::vector{Activation::kTanh, Activation::kRelu}));
  EXPECT_EQ(options.files, (std::vector<std::filesystem::path>{"a", "b/c"}));
  EXPECT_EQ(options.kernel, (std::array<int, 2>{5, 1}));
  EXPECT_EQ(options.by_name.at("a"), Activation::kGelu);
}

TEST(SchemaTest, ValuesThatTheTypeCannotHoldAreRefusedWithTheLimitOfTheFieldOrOfTheType) {
  const std::string at = "[config] test.yaml:1:";
  EXPECT_EQ(scalar_error("small: 2147483648"), at + "8: model.small must be at most 2147483647; got 2147483648");
  EXPECT_EQ(scalar_error("small: -2147483649"), at + "8: model.small must be at least -1; got -2147483649");
  EXPECT_EQ(scalar_error("limit: -2147483649"), at + "8: model.limit must be at least 1; got -2147483649");
  EXPECT_EQ(scalar_error("byte: 256"), at + "7: model.byte must be at most 200; got 256");
  EXPECT_EQ(scalar_error("byte: -1"), at + "7: model.byte must be at least 0; got -1");
  EXPECT_EQ(scalar_error("byte: 201"), at + "7: model.byte must be at most 200; got 201");
  EXPECT_EQ(scalar_error("size: -1"), at + "7: model.size must be at least 0; got -1");
  EXPECT_EQ(scalar_error("rate: 1e39"),
            at + "7: model.rate must be 0 or of a size from 1e-45 to 3.4028235e+38; got 1e39");
  EXPECT_EQ(scalar_error("rate: 1e-50"),
            at + "7: model.rate must be 0 or of a size from 1e-45 to 3.4028235e+38; got 1e-50");
  EXPECT_EQ(scalar_error("rate: 0"), at + "7: model.rate must be above 0; got 0");
  EXPECT_EQ(scalar_error("widths: [1, 3000000000]"),
            at + "13: model.widths[1] must be at most 2147483647; got 3000000000");
  EXPECT_EQ(scalar_error("kernel: [1]"), at + "9: model.kernel: expected list of 2 integers; got a list");
  EXPECT_EQ(scalar_error("kernel: 1"), at + "9: model.kernel: expected list of 2 integers; got '1'");
  EXPECT_EQ(scalar_error("small: 1.5"), at + "8: model.small: expected an integer; got '1.5'");
  EXPECT_EQ(scalar_error("folder: [a]"), at + "9: model.folder: expected a path; got a list");
}

TEST(SchemaTest, EnumerationsGoByTheirNames) {
  const std::string at = "[config] test.yaml:1:";
  EXPECT_EQ(scalar_error("activation: rleu"), at + "13: model.activation must be one of relu, gelu; got rleu");
  EXPECT_EQ(scalar_error("activation: 5"), at + "13: model.activation must be one of relu, gelu; got 5");
  EXPECT_EQ(scalar_error("activation: [relu]"), at + "13: model.activation: expected a string; got a list");
  EXPECT_EQ(scalar_error("activation: null"), at + "13: model.activation: expected a string; got null");
  EXPECT_EQ(scalar_error("layers: [relu, gelu]"), at + "16: model.layers[1] must be one of relu, tanh; got gelu");
  EXPECT_EQ(scalar_error("by_name: {x: tanh}"), at + "14: model.by_name.x must be one of relu, gelu; got tanh");
  EXPECT_EQ(scalar_error("head: null"), "no error");

  EveryScalar options;
  EXPECT_NO_THROW(schema_of<EveryScalar>().validate(options, "model"));
  options.activation = Activation::kTanh;  // which has no name
  try {
    schema_of<EveryScalar>().validate(options, "model");
    FAIL() << "no exception";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[config] model.activation must be one of relu, gelu; got 6");
  }
}

TEST(SchemaTest, TheOtherScalarsAreDumpedAndDocumented) {
  const Config dumped = schema_of<EveryScalar>().dump({});
  EXPECT_EQ(dumped.to_flow(),
            "{small: 3, byte: 7, size: 9, rate: 0.1, activation: gelu, folder: runs, limit: null, head: null, "
            "widths: [1, 2], scales: [0.1, 2], layers: [tanh], files: [], kernel: [3, 3], by_name: {}}");
  const auto again = parse_options<EveryScalar>(parse(dumped.to_yaml()), "model");
  EXPECT_TRUE(schema_of<EveryScalar>().dump(again) == dumped);

  const auto fields = schema_of<EveryScalar>().fields();
  const std::vector<std::string> types = {
      "integer",        "non-negative integer", "non-negative integer", "number",           "string",
      "path",           "integer or null",      "string or null",       "list of integer",  "list of number",
      "list of string", "list of path",         "list of 2 integers",   "mapping of string"};
  ASSERT_EQ(fields.size(), types.size());
  for (size_t i = 0; i < types.size(); ++i) EXPECT_EQ(fields[i].type, types[i]) << fields[i].name;
  EXPECT_EQ(fields[1].constraint, "at most 200");
  EXPECT_EQ(fields[4].constraint, "one of relu, gelu");
  EXPECT_EQ(fields[4].default_value, "gelu");
}

struct OutOfOrder {
  int64_t first = 1;
  Inner second = {};
  std::string third = "c";

  static void describe(Schema<OutOfOrder>& schema) {
    schema.field("third", &OutOfOrder::third, "the last one").one_of({"a", "c"});
    schema.field("first", &OutOfOrder::first, "the first one").at_least(1);
    schema.field("second", &OutOfOrder::second, "the middle one");
  }
};

TEST(SchemaTest, FieldsAreListedAsTheStructDeclaresThem) {
  EXPECT_EQ(schema_of<OutOfOrder>().names(), (std::vector<std::string>{"first", "second", "third"}));
  EXPECT_EQ(schema_of<OutOfOrder>().fields()[2].constraint, "one of a, c");
  EXPECT_EQ(schema_of<OutOfOrder>().dump({}).to_flow(), "{first: 1, second: {depth: 2, rate: 0.5}, third: c}");
}

struct Renamed {
  int64_t prefetch = 1;
  static void describe(Schema<Renamed>& schema) {
    schema.field("prefetch", &Renamed::prefetch, "how many").formerly("ahead").at_least(0);
  }
};

TEST(SchemaTest, FormerNamesAreReadAndSayThePresentOne) {
  EXPECT_EQ(parse_options<Renamed>(parse("ahead: 3"), "section").prefetch, 3);
  EXPECT_EQ(schema_of<Renamed>().resolve(parse("ahead: 3"), "section").to_flow(), "{prefetch: 3}");
  EXPECT_EQ(schema_of<Renamed>().names(), std::vector<std::string>{"prefetch"});
  EXPECT_EQ(option_error<Renamed>("ahead: -1"), "[config] test.yaml:1:8: section.prefetch must be at least 0; got -1");
  EXPECT_EQ(option_error<Renamed>("{ahead: 3, prefetch: 2}"),
            "[config] test.yaml:1:9: section.ahead is an older spelling of prefetch, which is given as well; hint: "
            "leave ahead out");
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
