#include <levin/core/data/transforms/color_transforms.h>

#include <levin/core/data/transforms/color_operations.h>
#include <levin/core/data/transforms/transform_options.h>

#include <algorithm>
#include <utility>

namespace levin::data {

namespace {

bool is_factor(const OneOrMore<double>& value) {
  return (value.count() == 1 && value[0] >= 0) || (value.count() == 2 && value[0] >= 0 && value[0] <= value[1]);
}

bool is_turn(const OneOrMore<double>& value) {
  if (value.count() == 1) return value[0] >= 0 && value[0] <= 0.5;
  return value.count() == 2 && value[0] >= -0.5 && value[0] <= value[1] && value[1] <= 0.5;
}

/// The range of one number around a neutral value; a range of its own otherwise.
std::pair<double, double> range_around(const OneOrMore<double>& value, double neutral, double least) {
  if (value.count() == 2) return {value[0], value[1]};
  return {std::max(neutral - value[0], least), neutral + value[0]};
}

}  // namespace

void ColorJitterOptions::describe(Schema<ColorJitterOptions>& schema) {
  using O = ColorJitterOptions;
  constexpr const char* kConstraint = "one number of at least 0, or two, the smaller first";
  schema.field("brightness", &O::brightness, "factors 1 - a to 1 + a, or [smallest, largest]")
      .require(kConstraint, is_factor);
  schema.field("contrast", &O::contrast, "factors 1 - a to 1 + a, or [smallest, largest]")
      .require(kConstraint, is_factor);
  schema.field("saturation", &O::saturation, "factors 1 - a to 1 + a, or [smallest, largest]")
      .require(kConstraint, is_factor);
  schema.field("hue", &O::hue, "parts of the circle of colours, -a to a, or [smallest, largest]")
      .require("one number from 0 to 0.5, or two from -0.5 to 0.5, the smaller first", is_turn);
}

ColorJitter::Change ColorJitter::draw(Generator& generator) const {
  Change change;
  for (size_t i = change.order.size() - 1; i > 0; --i)
    std::swap(change.order[i], change.order[static_cast<size_t>(generator.below(static_cast<int64_t>(i) + 1))]);
  const std::array<std::pair<double, double>, 4> ranges = {
      range_around(options_.brightness, 1, 0), range_around(options_.contrast, 1, 0),
      range_around(options_.saturation, 1, 0), range_around(options_.hue, 0, -0.5)};
  for (size_t i = 0; i < ranges.size(); ++i) {
    const double neutral = i == 3 ? 0 : 1;
    if (ranges[i] != std::pair(neutral, neutral))
      change.factors[i] = uniform(generator, ranges[i].first, ranges[i].second);
  }
  return change;
}

at::Tensor ColorJitter::transform(const at::Tensor& image, Generator& generator) const {
  using Adjust = at::Tensor (*)(const at::Tensor&, double);
  constexpr std::array<Adjust, 4> kAdjust = {operations::adjust_brightness, operations::adjust_contrast,
                                             operations::adjust_saturation, operations::adjust_hue};
  const Change change = draw(generator);
  at::Tensor changed = image;
  for (int i : change.order) {
    const auto which = static_cast<size_t>(i);
    if (change.factors[which]) changed = kAdjust[which](changed, *change.factors[which]);
  }
  return changed;
}

void GrayscaleOptions::describe(Schema<GrayscaleOptions>& schema) {
  schema.field("num_output_channels", &GrayscaleOptions::num_output_channels, "channels, all equal").one_of({1, 3});
}

at::Tensor Grayscale::transform(const at::Tensor& image, Generator& /*generator*/) const {
  return operations::rgb_to_grayscale(image, channels_);
}

void RandomGrayscaleOptions::describe(Schema<RandomGrayscaleOptions>& schema) {
  schema.field("p", &RandomGrayscaleOptions::p, "probability").at_least(0).at_most(1);
}

at::Tensor RandomGrayscale::transform(const at::Tensor& image, Generator& generator) const {
  return generator.uniform() < p_ ? operations::rgb_to_grayscale(image, image.size(0)) : image;
}

}  // namespace levin::data
