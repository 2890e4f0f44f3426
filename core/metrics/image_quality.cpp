#include <levin/core/metrics/image_quality.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>
#include <levin/core/metrics/square_sums.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace levin::metrics {

void PeakSignalNoiseRatioOptions::describe(Schema<PeakSignalNoiseRatioOptions>& schema) {
  schema
      .field("data_range", &PeakSignalNoiseRatioOptions::data_range,
             "from the smallest to the largest value that a pixel can have")
      .above(0);
}

PeakSignalNoiseRatio::PeakSignalNoiseRatio(const Options& options)
    : SumMetric("PeakSignalNoiseRatio", 4), options_(options) {
  schema_of<Options>().validate(options, "PeakSignalNoiseRatio");
}

at::Tensor PeakSignalNoiseRatio::sums_of(const at::Tensor& predictions, const at::Tensor& targets) const {
  return at::cat({detail::squares_of(predictions - targets),
                  at::full({1}, static_cast<double>(targets.numel()), targets.options())});
}

at::Tensor PeakSignalNoiseRatio::compute() const {
  return -20 * (detail::root_mean_square(sums().slice(0, 0, 3), sums()[3]) / options_.data_range).log10();
}

State PeakSignalNoiseRatio::upgraded(const State& saved) const {
  const State* const sums = saved.find("sums");
  if (sums == nullptr || sums->as_tensor().numel() != 2) return saved;
  State separate = saved;
  separate["sums"] = at::cat({detail::ordinary_squares(sums->as_tensor()[0]), sums->as_tensor().slice(0, 1)});
  return separate;
}

void StructuralSimilarityOptions::describe(Schema<StructuralSimilarityOptions>& schema) {
  using Options = StructuralSimilarityOptions;
  schema.field("data_range", &Options::data_range, "from the smallest to the largest value that a pixel can have")
      .above(0);
  schema.field("sigma", &Options::sigma, "standard deviation of the window, in pixels").above(0);
  schema.field("k1", &Options::k1, "keeps the comparison of luminances from dividing by 0, in parts of the range")
      .above(0);
  schema.field("k2", &Options::k2, "keeps that of contrasts from it").above(0);
}

namespace {

/// Means over windows along a dimension, without a convolution, which would round to TF32 on GPUs.
at::Tensor window_means(const at::Tensor& values, const std::vector<double>& window, int64_t dim) {
  const auto width = static_cast<int64_t>(window.size());
  const int64_t places = values.size(dim) - width + 1;
  at::Tensor means = values.narrow(dim, 0, places) * window[0];
  for (int64_t i = 1; i < width; ++i) means.add_(values.narrow(dim, i, places), window[static_cast<size_t>(i)]);
  return means;
}

std::vector<double> gaussian_window(double sigma) {
  const int64_t reach = static_cast<int64_t>(3.5 * sigma + 0.5);
  std::vector<double> window;
  double sum = 0;
  for (int64_t i = -reach; i <= reach; ++i) {
    window.push_back(std::exp(-0.5 * static_cast<double>(i * i) / (sigma * sigma)));
    sum += window.back();
  }
  for (double& weight : window) weight /= sum;
  return window;
}

}  // namespace

StructuralSimilarity::StructuralSimilarity(const Options& options)
    : options_(detail::checked_options(options, "StructuralSimilarity")), window_(gaussian_window(options.sigma)) {
  add_state("sums", at::zeros({2}, at::kDouble), Reduction::kSum);
}

StructuralSimilarity& StructuralSimilarity::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const UpdateScope scope(*this);
  const auto reach = static_cast<int64_t>(window_.size() / 2);
  if (predictions.sizes() != targets.sizes() || predictions.dim() != 4 || predictions.size(2) <= reach ||
      predictions.size(3) <= reach)
    throw Error("metrics", fmt::format("StructuralSimilarity: got predictions {} and targets {}; valid: images [N, C, "
                                       "H, W] of one shape, of at least {} by {} pixels; hint: a smaller sigma has a "
                                       "smaller window",
                                       c10::str(predictions.sizes()), c10::str(targets.sizes()), reach + 1, reach + 1));
  detail::check_same_device("StructuralSimilarity", "predictions and targets", predictions, targets);
  ensure_device(predictions.device());
  const std::vector<int64_t> edges(4, reach);
  // In a unit of about the range, in which squares are in float64's: similarities do not follow from it.
  int exponent = 0;
  const double range = std::frexp(options_.data_range, &exponent);
  const double unit = std::ldexp(1.0, exponent - 1);
  // Variances are taken of what is left without the mean of the image, beside which they may be small.
  const auto centred = [&](const at::Tensor& images) {
    const at::Tensor wide = images.detach().to(at::kDouble) / unit;
    const at::Tensor level = wide.mean({2, 3}, /*keepdim=*/true);
    return std::pair(at::reflection_pad2d(wide - level, edges), level);
  };
  const auto [x, x_level] = centred(predictions);
  const auto [y, y_level] = centred(targets);
  const at::Tensor means = window_means(window_means(at::stack({x, y, x * x, y * y, x * y}), window_, 3), window_, 4);
  const double c1 = std::pow(options_.k1 * (2 * range), 2);
  const double c2 = std::pow(options_.k2 * (2 * range), 2);
  const at::Tensor x_means = means[0] + x_level;
  const at::Tensor y_means = means[1] + y_level;
  const at::Tensor products = x_means * y_means;
  const at::Tensor squares = x_means.square() + y_means.square();
  const at::Tensor covariance = means[4] - means[0] * means[1];
  const at::Tensor x_variance = (means[2] - means[0].square()).clamp_min_(0);
  const at::Tensor y_variance = (means[3] - means[1].square()).clamp_min_(0);
  const at::Tensor similarities =
      (2 * products + c1) * (2 * covariance + c2) / ((squares + c1) * (x_variance + y_variance + c2));
  const at::Tensor of_images = similarities.mean({1, 2, 3});
  state(0).add_(
      at::stack({of_images.sum(), at::full({}, static_cast<double>(of_images.numel()), of_images.options())}));
  return *this;
}

at::Tensor StructuralSimilarity::compute() const { return state(0)[0] / state(0)[1]; }

}  // namespace levin::metrics
