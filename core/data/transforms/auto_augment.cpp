#include <levin/core/data/transforms/auto_augment.h>

#include <levin/core/base/error.h>
#include <levin/core/data/transforms/color_operations.h>
#include <levin/core/data/transforms/transform_options.h>

#include <ATen/ops/linspace.h>

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <numbers>

namespace levin::data {

namespace {

enum class Strength { kNone, kShear, kShiftX, kShiftY, kAngle, kFactor, kBits, kThreshold };

struct Choice {
  const char* name;
  Strength strength;
};

constexpr std::array<Choice, 14> kChoices = {{{"Identity", Strength::kNone},
                                              {"ShearX", Strength::kShear},
                                              {"ShearY", Strength::kShear},
                                              {"TranslateX", Strength::kShiftX},
                                              {"TranslateY", Strength::kShiftY},
                                              {"Rotate", Strength::kAngle},
                                              {"Brightness", Strength::kFactor},
                                              {"Color", Strength::kFactor},
                                              {"Contrast", Strength::kFactor},
                                              {"Sharpness", Strength::kFactor},
                                              {"Posterize", Strength::kBits},
                                              {"Solarize", Strength::kThreshold},
                                              {"AutoContrast", Strength::kNone},
                                              {"Equalize", Strength::kNone}}};

/// Largest strengths.
struct Space {
  double shear;
  double shift_x;
  double shift_y;
  double angle;
  double factor;
  double bits;
};

AugmentOperation with_strength(const Choice& choice, const Space& space, int64_t bins, int64_t bin,
                               Generator& generator) {
  const auto signed_part = [&](double most) {
    const auto magnitude = static_cast<double>(at::linspace(0, most, bins, at::kFloat)[bin].item<float>());
    return generator.uniform() <= 0.5 ? -magnitude : magnitude;
  };
  switch (choice.strength) {
    case Strength::kNone:
      return {choice.name, 0};
    case Strength::kShear:
      return {choice.name, signed_part(space.shear)};
    case Strength::kShiftX:
      return {choice.name, signed_part(space.shift_x)};
    case Strength::kShiftY:
      return {choice.name, signed_part(space.shift_y)};
    case Strength::kAngle:
      return {choice.name, signed_part(space.angle)};
    case Strength::kFactor:
      return {choice.name, signed_part(space.factor)};
    case Strength::kBits:
      return {choice.name, std::nearbyint(8 - static_cast<float>(bin) /
                                                  (static_cast<float>(bins - 1) / static_cast<float>(space.bits)))};
    case Strength::kThreshold:
      return {choice.name, static_cast<double>(at::linspace(1, 0, bins, at::kFloat)[bin].item<float>())};
  }
  return {};
}

const Choice& drawn_choice(Generator& generator) {
  return kChoices[static_cast<size_t>(generator.below(static_cast<int64_t>(kChoices.size())))];
}

operations::Fill to_fill(const std::optional<OneOrMore<double>>& fill) {
  if (!fill) return std::nullopt;
  return fill->values();
}

constexpr const char* kOutsideDoc = "value of pixels outside the image: one number, or one for each channel";
const std::vector<std::pair<std::string, operations::Interpolation>> kAugmentSampling = {
    {"nearest", operations::Interpolation::kNearest}, {"bilinear", operations::Interpolation::kBilinear}};

}  // namespace

at::Tensor augment(const at::Tensor& image, const AugmentOperation& operation, operations::Interpolation interpolation,
                   const operations::Fill& fill) {
  using namespace operations;
  const std::string& name = operation.name;
  const double magnitude = operation.magnitude;
  const auto mapped = [&](const AffineMap& map) { return affine(image, map, interpolation, fill); };
  const double shear = std::atan(magnitude) * (180 / std::numbers::pi);
  if (name == "Identity") return image;
  if (name == "ShearX") return mapped({.shear = {shear, 0}, .center = {{0, 0}}});
  if (name == "ShearY") return mapped({.shear = {0, shear}, .center = {{0, 0}}});
  if (name == "TranslateX") return mapped({.translate = {std::trunc(magnitude), 0}});
  if (name == "TranslateY") return mapped({.translate = {0, std::trunc(magnitude)}});
  if (name == "Rotate") return rotate(image, magnitude, interpolation, false, std::nullopt, fill);
  if (name == "Brightness") return adjust_brightness(image, 1 + magnitude);
  if (name == "Color") return adjust_saturation(image, 1 + magnitude);
  if (name == "Contrast") return adjust_contrast(image, 1 + magnitude);
  if (name == "Sharpness") return adjust_sharpness(image, 1 + magnitude);
  if (name == "Posterize") return posterize(image, static_cast<int64_t>(magnitude));
  if (name == "Solarize") return solarize(image, magnitude * (image.is_floating_point() ? 1 : 255));
  if (name == "AutoContrast") return autocontrast(image);
  if (name == "Equalize") return equalize(image);
  throw InternalError("unknown operation " + name);
}

void RandAugmentOptions::describe(Schema<RandAugmentOptions>& schema) {
  using O = RandAugmentOptions;
  schema.field("num_ops", &O::num_ops, "operations, one after the other").at_least(0).at_most(100);
  schema.field("magnitude", &O::magnitude, "strength, from 0 to num_magnitude_bins - 1").at_least(0);
  schema.field("num_magnitude_bins", &O::num_magnitude_bins, "steps of the strength").at_least(2).at_most(1000);
  schema.field("interpolation", &O::interpolation, "interpolation between pixels", kAugmentSampling);
  schema.field("fill", &O::fill, kOutsideDoc);
}

RandAugment::RandAugment(const Options& options) : options_(options) {
  if (options.magnitude >= options.num_magnitude_bins)
    throw ConfigError(fmt::format("magnitude of rand_augment must be below num_magnitude_bins, {}; got {}",
                                  options.num_magnitude_bins, options.magnitude));
}

AugmentOperation RandAugment::draw(const operations::Size& image, Generator& generator) const {
  const double part = 150.0 / 331.0;
  const Space space = {.shear = 0.3,
                       .shift_x = part * static_cast<double>(image.width),
                       .shift_y = part * static_cast<double>(image.height),
                       .angle = 30,
                       .factor = 0.9,
                       .bits = 4};
  const Choice& choice = drawn_choice(generator);
  return with_strength(choice, space, options_.num_magnitude_bins, options_.magnitude, generator);
}

at::Tensor RandAugment::transform(const at::Tensor& image, Generator& generator) const {
  at::Tensor changed = image;
  const operations::Size size = operations::size_of(image);
  for (int64_t i = 0; i < options_.num_ops; ++i)
    changed = augment(changed, draw(size, generator), options_.interpolation, to_fill(options_.fill));
  return changed;
}

void TrivialAugmentWideOptions::describe(Schema<TrivialAugmentWideOptions>& schema) {
  using O = TrivialAugmentWideOptions;
  schema.field("num_magnitude_bins", &O::num_magnitude_bins, "steps of the strength").at_least(2).at_most(1000);
  schema.field("interpolation", &O::interpolation, "interpolation between pixels", kAugmentSampling);
  schema.field("fill", &O::fill, kOutsideDoc);
}

AugmentOperation TrivialAugmentWide::draw(Generator& generator) const {
  const Space space = {.shear = 0.99, .shift_x = 32, .shift_y = 32, .angle = 135, .factor = 0.99, .bits = 6};
  const Choice& choice = drawn_choice(generator);
  const int64_t bin = generator.below(options_.num_magnitude_bins);
  return with_strength(choice, space, options_.num_magnitude_bins, bin, generator);
}

at::Tensor TrivialAugmentWide::transform(const at::Tensor& image, Generator& generator) const {
  return augment(image, draw(generator), options_.interpolation, to_fill(options_.fill));
}

}  // namespace levin::data
