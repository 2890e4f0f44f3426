#include <levin/core/metrics/regression.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <limits>
#include <tuple>

namespace levin::metrics {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();
/// The smallest target of a percentage.
constexpr double kSmallestTarget = 1.17e-6;

void check_pair(const char* name, const at::Tensor& predictions, const at::Tensor& targets) {
  if (predictions.sizes() != targets.sizes())
    throw Error("metrics", fmt::format("{}: predictions and targets do not fit; got predictions {} and targets {}; "
                                       "valid: one shape; hint: squeeze(1) or view_as",
                                       name, c10::str(predictions.sizes()), c10::str(targets.sizes())));
  detail::check_same_device(name, "predictions and targets", predictions, targets);
}

at::Tensor flat(const at::Tensor& values) { return values.detach().reshape(-1).to(at::kDouble); }

at::Tensor count_of(const at::Tensor& values) {
  return at::full({}, static_cast<double>(values.numel()), values.options());
}

/// The place of each value in ascending order from 1, ties in the middle of theirs.
at::Tensor ranks(const at::Tensor& values) {
  const auto [unique, places, counts] =
      at::_unique2(values, /*sorted=*/true, /*return_inverse=*/true, /*return_counts=*/true);
  const at::Tensor last = counts.cumsum(0).to(at::kDouble);
  return (last - (counts.to(at::kDouble) - 1) / 2).index_select(0, places);
}

}  // namespace

SumMetric::SumMetric(const char* name, int64_t sums) : name_(name) {
  add_state("sums", at::zeros({sums}, at::kDouble), Reduction::kSum);
}

SumMetric& SumMetric::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const UpdateScope scope(*this);
  check_pair(name_, predictions, targets);
  ensure_device(predictions.device());
  state(0).add_(sums_of(flat(predictions), flat(targets)));
  return *this;
}

at::Tensor MeanAbsoluteError::sums_of(const at::Tensor& predictions, const at::Tensor& targets) const {
  return at::stack({(predictions - targets).abs().sum(), count_of(targets)});
}

at::Tensor MeanAbsoluteError::compute() const { return sums()[0] / sums()[1]; }

at::Tensor MeanAbsolutePercentageError::sums_of(const at::Tensor& predictions, const at::Tensor& targets) const {
  return at::stack(
      {((predictions - targets).abs() / targets.abs().clamp_min(kSmallestTarget)).sum(), count_of(targets)});
}

at::Tensor MeanAbsolutePercentageError::compute() const { return sums()[0] / sums()[1]; }

at::Tensor MomentMetric::sums_of(const at::Tensor& predictions, const at::Tensor& targets) const {
  return at::stack({count_of(targets), predictions.sum(), targets.sum(), predictions.square().sum(),
                    targets.square().sum(), (predictions * targets).sum()});
}

MomentMetric::Moments MomentMetric::moments() const {
  const at::Tensor& all = sums();
  const at::Tensor means = all / all[0];
  Moments found;
  found.count = all[0];
  found.prediction_variance = (means[3] - means[1].square()).clamp_min(0);
  found.target_variance = (means[4] - means[2].square()).clamp_min(0);
  found.covariance = means[5] - means[1] * means[2];
  found.mean_error = means[1] - means[2];
  found.mean_square_error = (means[3] - 2 * means[5] + means[4]).clamp_min(0);
  return found;
}

at::Tensor R2Score::compute() const {
  const Moments found = moments();
  return at::where(found.count >= 2, 1 - found.mean_square_error / found.target_variance, kUndefined);
}

at::Tensor ExplainedVariance::compute() const {
  const Moments found = moments();
  return 1 - (found.mean_square_error - found.mean_error.square()).clamp_min(0) / found.target_variance;
}

at::Tensor PearsonCorrelation::compute() const {
  const Moments found = moments();
  return (found.covariance / (found.prediction_variance * found.target_variance).sqrt()).clamp(-1, 1);
}

SpearmanCorrelation::SpearmanCorrelation() {
  add_state("predictions", at::empty({0}, at::kFloat), Reduction::kConcatenate);
  add_state("targets", at::empty({0}, at::kFloat), Reduction::kConcatenate);
}

SpearmanCorrelation& SpearmanCorrelation::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const UpdateScope scope(*this);
  check_pair("SpearmanCorrelation", predictions, targets);
  ensure_device(predictions.device());
  append_rows(0, predictions.reshape(-1).to(at::kFloat));
  append_rows(1, targets.reshape(-1).to(at::kFloat));
  return *this;
}

at::Tensor SpearmanCorrelation::compute() const {
  if (state(0).numel() == 0) return at::full({}, kUndefined, at::kDouble);
  return PearsonCorrelation().update(ranks(state(0)), ranks(state(1))).compute();
}

CosineSimilarity::CosineSimilarity() { add_state("sums", at::zeros({2}, at::kDouble), Reduction::kSum); }

CosineSimilarity& CosineSimilarity::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const UpdateScope scope(*this);
  check_pair("CosineSimilarity", predictions, targets);
  if (predictions.dim() != 2)
    throw Error("metrics", fmt::format("CosineSimilarity: got predictions {}; valid: [N, D]; hint: flatten(1)",
                                       c10::str(predictions.sizes())));
  ensure_device(predictions.device());
  const at::Tensor first = predictions.detach().to(at::kDouble);
  const at::Tensor second = targets.detach().to(at::kDouble);
  const at::Tensor lengths = (first.square().sum(1) * second.square().sum(1)).sqrt();
  const at::Tensor cosines = (first * second).sum(1) / lengths;
  state(0).add_(at::stack({cosines.sum(), at::full({}, static_cast<double>(predictions.size(0)), cosines.options())}));
  return *this;
}

at::Tensor CosineSimilarity::compute() const { return state(0)[0] / state(0)[1]; }

}  // namespace levin::metrics
