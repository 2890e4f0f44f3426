#include <levin/core/data/transforms/distortions.h>

#include <levin/core/base/error.h>
#include <levin/core/data/transforms/transform_options.h>

#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace levin::data {

namespace {

constexpr const char* kDegreesDoc = "degrees: one number a for -a to a, or [smallest, largest]";
constexpr const char* kDegreesConstraint = "one number of at least 0, or two, the smaller first";
constexpr const char* kBackgroundDoc = "value of pixels outside the image: one number, or one for each channel";
constexpr const char* kCenterDoc = "[x, y] in pixels of the place that stays; null: the middle";
const std::vector<std::pair<std::string, operations::Interpolation>> kSampling = {
    {"nearest", operations::Interpolation::kNearest}, {"bilinear", operations::Interpolation::kBilinear}};

bool is_span(const OneOrMore<double>& span) {
  return (span.count() == 1 && span[0] >= 0) || (span.count() == 2 && span[0] <= span[1]);
}

double drawn_from_span(const OneOrMore<double>& span, Generator& generator) {
  return span.count() == 1 ? uniform(generator, -span[0], span[0]) : uniform(generator, span[0], span[1]);
}

}  // namespace

void RandomRotationOptions::describe(Schema<RandomRotationOptions>& schema) {
  using O = RandomRotationOptions;
  schema.field("degrees", &O::degrees, kDegreesDoc).require(kDegreesConstraint, is_span);
  schema.field("interpolation", &O::interpolation, "interpolation between pixels", kSampling);
  schema.field("expand", &O::expand, "enlarge the image to keep all of it");
  schema.field("center", &O::center, kCenterDoc);
  schema.field("fill", &O::fill, kBackgroundDoc);
}

RandomRotation::RandomRotation(const Options& options) : options_(checked(options, "random_rotation")) {}

at::Tensor RandomRotation::transform(const at::Tensor& image, Generator& generator) const {
  return operations::rotate(image, drawn_from_span(options_.degrees, generator), options_.interpolation,
                            options_.expand, options_.center, options_.fill.values());
}

void RandomAffineOptions::describe(Schema<RandomAffineOptions>& schema) {
  using O = RandomAffineOptions;
  schema.field("degrees", &O::degrees, kDegreesDoc).require(kDegreesConstraint, is_span);
  schema.field("translate", &O::translate, "largest shifts, as fractions of width and height")
      .require("two numbers from 0 to 1", [](const std::array<double, 2>& parts) {
        return std::all_of(parts.begin(), parts.end(), [](double part) { return part >= 0 && part <= 1; });
      });
  schema.field("scale", &O::scale, "smallest and largest scale")
      .require("two numbers above 0, the smaller first", [](const auto& range) { return is_range(range, 1e-9, 1e9); });
  schema
      .field("shear", &O::shear,
             "degrees along x: one number a for -a to a, or [smallest, largest]; with two more along y, too")
      .require("one, two or four numbers, the smaller first", [](const OneOrMore<double>& shear) {
        if (shear.count() == 4) return shear[0] <= shear[1] && shear[2] <= shear[3];
        return is_span(shear);
      });
  schema.field("interpolation", &O::interpolation, "interpolation between pixels", kSampling);
  schema.field("fill", &O::fill, kBackgroundDoc);
  schema.field("center", &O::center, kCenterDoc);
}

RandomAffine::RandomAffine(const Options& options) : options_(checked(options, "random_affine")) {}

operations::AffineMap RandomAffine::draw(const operations::Size& image, Generator& generator) const {
  operations::AffineMap map;
  map.angle = drawn_from_span(options_.degrees, generator);
  if (options_.translate) {
    const double right = (*options_.translate)[0] * static_cast<double>(image.width);
    const double down = (*options_.translate)[1] * static_cast<double>(image.height);
    map.translate = {std::nearbyint(uniform(generator, -right, right)),
                     std::nearbyint(uniform(generator, -down, down))};
  }
  if (options_.scale) map.scale = uniform(generator, (*options_.scale)[0], (*options_.scale)[1]);
  if (options_.shear) {
    const OneOrMore<double>& shear = *options_.shear;
    map.shear[0] = shear.count() == 4 ? uniform(generator, shear[0], shear[1]) : drawn_from_span(shear, generator);
    if (shear.count() == 4) map.shear[1] = uniform(generator, shear[2], shear[3]);
  }
  map.center = options_.center;
  return map;
}

at::Tensor RandomAffine::transform(const at::Tensor& image, Generator& generator) const {
  return operations::affine(image, draw(operations::size_of(image), generator), options_.interpolation,
                            options_.fill.values());
}

void GaussianBlurOptions::describe(Schema<GaussianBlurOptions>& schema) {
  using O = GaussianBlurOptions;
  schema.field("kernel_size", &O::kernel_size, "pixels that are mixed: one number, or [to the side, up and down]")
      .require("one or two odd numbers from 1 to 1023", [](const OneOrMore<int64_t>& size) {
        return (size.count() == 1 || size.count() == 2) &&
               std::all_of(size.values().begin(), size.values().end(),
                           [](int64_t value) { return value >= 1 && value <= 1023 && value % 2 == 1; });
      });
  schema.field("sigma", &O::sigma, "standard deviation in pixels: one number, or [smallest, largest]")
      .require("one or two numbers above 0, the smaller first", [](const OneOrMore<double>& sigma) {
        return (sigma.count() == 1 || sigma.count() == 2) && sigma[0] > 0 && sigma[0] <= sigma.at(1);
      });
}

GaussianBlur::GaussianBlur(const Options& options) : options_(checked(options, "gaussian_blur")) {}

at::Tensor GaussianBlur::transform(const at::Tensor& image, Generator& generator) const {
  const double sigma = uniform(generator, options_.sigma[0], options_.sigma.at(1));
  return operations::gaussian_blur(image, {options_.kernel_size[0], options_.kernel_size.at(1)}, {sigma, sigma});
}

void RandomErasingOptions::describe(Schema<RandomErasingOptions>& schema) {
  using O = RandomErasingOptions;
  schema.field("p", &O::p, "probability").at_least(0).at_most(1);
  schema.field("scale", &O::scale, "smallest and largest part of the image's area")
      .require("two numbers from 0 to 1, the smaller first", [](const auto& range) { return is_range(range, 0, 1); });
  schema.field("ratio", &O::ratio, "smallest and largest height for a width of 1")
      .require("two numbers above 0, the smaller first", [](const auto& range) { return is_range(range, 1e-9, 1e9); });
  schema.field("value", &O::value,
               "value of the erased pixels: one number or one for each channel; null: noise of deviation 1");
}

at::Tensor RandomErasing::transform(const at::Tensor& image, Generator& generator) const {
  if (generator.uniform() >= options_.p) return image;
  const auto [height, width] = operations::size_of(image);
  if (options_.value && options_.value->count() != 1 && static_cast<int64_t>(options_.value->count()) != image.size(0))
    throw ConfigError(
        fmt::format("value of random_erasing must be one number, or one for each of the {} channels; got "
                    "{}",
                    image.size(0), options_.value->count()));
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    const double area = static_cast<double>(height * width) * uniform(generator, options_.scale[0], options_.scale[1]);
    const double aspect = std::exp(uniform(generator, std::log(options_.ratio[0]), std::log(options_.ratio[1])));
    const operations::Size size = {static_cast<int64_t>(std::nearbyint(std::sqrt(area * aspect))),
                                   static_cast<int64_t>(std::nearbyint(std::sqrt(area / aspect)))};
    if (size.height >= height || size.width >= width) continue;
    const at::Tensor value = options_.value
                                 ? at::tensor(options_.value->values(), at::kFloat).view({-1, 1, 1})
                                 : at::randn({image.size(0), size.height, size.width}, generator.torch(), at::kFloat);
    const int64_t top = generator.below(height - size.height + 1);
    const int64_t left = generator.below(width - size.width + 1);
    return operations::erase(image, top, left, size, value);
  }
  return image;
}

}  // namespace levin::data
