#include <levin/core/base/spec.h>

#include "parse_yaml.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace levin {
namespace {

class Shape : public Configurable {
 public:
  virtual int64_t corners() const = 0;
};

struct PolygonOptions {
  int64_t corners = 3;
  static void describe(Schema<PolygonOptions>& schema) {
    schema.field("corners", &PolygonOptions::corners, "how many corners").at_least(3);
  }
};

class Polygon : public Shape {
 public:
  using Options = PolygonOptions;
  explicit Polygon(const Options& options) : corners_(options.corners) {}
  int64_t corners() const override { return corners_; }

 private:
  int64_t corners_;
};

Registry<Shape> shapes() {
  Registry<Shape> registry("shape");
  registry.add<Polygon>("polygon");
  return registry;
}

int64_t corners_of(const std::string& yaml) {
  return Spec<Shape>(parse(yaml)).resolve(shapes(), "trainer.shape")->corners();
}

std::string shape_error(const std::string& yaml) {
  try {
    corners_of(yaml);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(SpecTest, AllFormsOfYaml) {
  EXPECT_EQ(corners_of("polygon"), 3);
  EXPECT_EQ(corners_of("{name: polygon, corners: 5}"), 5);
  EXPECT_EQ(corners_of("{name: polygon}"), 3);
  EXPECT_EQ(corners_of("{polygon: {corners: 6}}"), 6);
  EXPECT_EQ(corners_of("polygon:\n"), 3);
}

TEST(SpecTest, ErrorsHavePlaceAndPath) {
  EXPECT_EQ(shape_error("polygn"),
            "[config] test.yaml:1:1: unknown shape 'polygn'; did you mean 'polygon'?; valid: polygon");
  EXPECT_EQ(shape_error("{polygon: {corners: 2}}"),
            "[config] test.yaml:1:21: trainer.shape.polygon.corners must be at least 3; got 2");
  EXPECT_EQ(shape_error("{name: polygon, corner: 4}"),
            "[config] test.yaml:1:17: unknown key 'corner' in 'trainer.shape'; did you mean 'corners'?; valid: "
            "corners");
  EXPECT_EQ(shape_error("{a: 1, b: 2}"),
            "[config] test.yaml:1:1: trainer.shape: expected the name of a shape, `{name: ..., option: value}` or "
            "`{NAME: {option: value}}`; got a mapping");
  EXPECT_NE(shape_error("[polygon]").find("got a list"), std::string::npos);
}

TEST(SpecTest, FromCode) {
  const Spec<Shape> by_name = "polygon";
  EXPECT_EQ(by_name.resolve(shapes(), "shape")->corners(), 3);
  EXPECT_EQ(by_name.name("shape", "shape"), "polygon");
  const auto object = make<Polygon>({.corners = 8});
  const Spec<Shape> by_object = object;
  EXPECT_EQ(by_object.resolve(shapes(), "shape"), object);
  EXPECT_EQ(by_object.name("shape", "shape"), "");
  EXPECT_FALSE(by_object.empty());
  EXPECT_TRUE(Spec<Shape>().empty());
}

TEST(SpecTest, CodecRoundTrips) {
  const auto specs = ConfigCodec<std::vector<Spec<Shape>>>::parse(parse("[polygon, polygon: {corners: 4}]"), "shapes");
  ASSERT_EQ(specs.size(), 2U);
  EXPECT_EQ(specs[1].resolve(shapes(), "shapes")->corners(), 4);
  EXPECT_EQ(ConfigCodec<std::vector<Spec<Shape>>>::dump(specs).to_flow(), "[polygon, {polygon: {corners: 4}}]");
  EXPECT_THROW(ConfigCodec<Spec<Shape>>::parse(parse("[polygon]"), "shape"), ConfigError);
}

TEST(SpecTest, ObjectIsWrittenAsItsRecipe) {
  auto registry = shapes();
  const Spec<Shape> spec = registry.make("polygon", parse("{corners: 7}"), "shape");
  EXPECT_EQ(spec.config().to_flow(), "{polygon: {corners: 7}}");
}

}  // namespace
}  // namespace levin
