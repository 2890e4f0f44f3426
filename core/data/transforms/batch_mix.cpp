#include <levin/core/data/transforms/batch_mix.h>

#include <levin/core/data/transforms/transform_options.h>

#include <ATen/ops/_sample_dirichlet.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace levin::data {

namespace {

/// A number from Beta(alpha, alpha), which is the first of a pair from a Dirichlet distribution.
double drawn_weight(double alpha, Generator& generator) {
  return at::_sample_dirichlet(at::tensor({alpha, alpha}, at::kDouble), generator.torch())[0].item<double>();
}

}  // namespace

at::Tensor fraction_tensor(double fraction) { return at::scalar_tensor(fraction, at::kDouble).view(at::kLong); }

at::Tensor fraction_of(const at::Tensor& tensor) { return tensor.view(at::kDouble); }

at::Tensor weighted_mean(const at::Tensor& values, const at::Tensor& others, const at::Tensor& weight) {
  return others.mul(1 - weight).add_(values.mul(weight));
}

void BatchMixOptions::describe(Schema<BatchMixOptions>& schema) {
  schema.field("alpha", &BatchMixOptions::alpha, "parameter of the distribution Beta(alpha, alpha) of weights")
      .above(0);
}

MixUp::MixUp(const Options& options) : alpha_(checked(options, "mix_up").alpha) {}

Batch MixUp::draw(int64_t /*height*/, int64_t /*width*/, Generator& generator) const {
  return {{"weight", fraction_tensor(drawn_weight(alpha_, generator))}};
}

at::Tensor MixUp::mix(const at::Tensor& images, const at::Tensor& others, const Batch& numbers) const {
  return weighted_mean(images, others, fraction_of(numbers["weight"]));
}

CutMix::CutMix(const Options& options) : alpha_(checked(options, "cut_mix").alpha) {}

Batch CutMix::draw(int64_t height, int64_t width, Generator& generator) const {
  const double half = 0.5 * std::sqrt(1 - drawn_weight(alpha_, generator));
  const int64_t x = generator.below(width);
  const int64_t y = generator.below(height);
  const auto half_width = static_cast<int64_t>(half * static_cast<double>(width));
  const auto half_height = static_cast<int64_t>(half * static_cast<double>(height));
  const int64_t left = std::max<int64_t>(x - half_width, 0);
  const int64_t top = std::max<int64_t>(y - half_height, 0);
  const int64_t right = std::min(x + half_width, width);
  const int64_t bottom = std::min(y + half_height, height);
  const double area = static_cast<double>((right - left) * (bottom - top)) / static_cast<double>(width * height);
  const auto place = [](int64_t pixel) { return at::scalar_tensor(pixel, at::kLong); };
  return {{"weight", fraction_tensor(1 - area)},
          {"top", place(top)},
          {"bottom", place(bottom)},
          {"left", place(left)},
          {"right", place(right)}};
}

at::Tensor CutMix::mix(const at::Tensor& images, const at::Tensor& others, const Batch& numbers) const {
  const auto options = images.options().dtype(at::kLong);
  const at::Tensor rows = at::arange(images.size(2), options).unsqueeze(1);
  const at::Tensor columns = at::arange(images.size(3), options).unsqueeze(0);
  const at::Tensor inside = (rows >= numbers["top"])
                                .logical_and(rows < numbers["bottom"])
                                .logical_and(columns >= numbers["left"])
                                .logical_and(columns < numbers["right"]);
  return at::where(inside, others, images);
}

Registry<BatchMix>& mix_registry() {
  static Registry<BatchMix>* instance = [] {
    auto* made = new Registry<BatchMix>("mixture");  // outlives every static object that may still use it
    made->add<MixUp>("mix_up", "weighted means of pairs of images (Zhang et al., 2017)");
    made->add<CutMix>("cut_mix", "a rectangle of each image is another one's (Yun et al., 2019)");
    return made;
  }();
  return *instance;
}

BatchMixes make_mixes(const std::vector<Spec<BatchMix>>& specs, const std::string& path) {
  BatchMixes mixes;
  for (size_t i = 0; i < specs.size(); ++i)
    mixes.push_back(specs[i].resolve(mix_registry(), fmt::format("{}[{}]", path, i)));
  return mixes;
}

}  // namespace levin::data
