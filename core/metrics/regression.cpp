#include <levin/core/metrics/regression.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>
#include <levin/core/metrics/moments.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/maximum.h>
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

/// Rows whose squares are in float64's range: cosines do not follow from their lengths.
at::Tensor in_units_of_rows(const at::Tensor& rows) {
  if (rows.size(1) == 0) return rows;
  const at::Tensor units = detail::unit_above(rows.abs().amax(1, /*keepdim=*/true));
  return rows / at::where(units == 0, 1.0, units);
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

// The variables of the moments.
constexpr int64_t kPrediction = 0;
constexpr int64_t kTarget = 1;
constexpr int64_t kError = 2;

MomentMetric::MomentMetric(const char* name) : name_(name) {
  add_state("moments", detail::no_moments(3), Reduction::kMoments);
}

MomentMetric& MomentMetric::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const UpdateScope scope(*this);
  check_pair(name_, predictions, targets);
  ensure_device(predictions.device());
  const at::Tensor found = flat(predictions);
  const at::Tensor meant = flat(targets);
  detail::add_variables(state(0), {found, meant, found - meant});
  return *this;
}

MomentMetric::Moments MomentMetric::moments() const {
  const detail::MomentParts parts(state(0));
  const at::Tensor covariances = parts.covariances();
  // The means of none are 0.
  const at::Tensor means = at::where(parts.count > 0, parts.means + parts.rests, kUndefined);
  return {.count = parts.count,
          .prediction_variance = covariances[kPrediction][kPrediction],
          .target_variance = covariances[kTarget][kTarget],
          .covariance = covariances[kPrediction][kTarget],
          .mean_error = means[kError],
          .error_variance = covariances[kError][kError],
          .target_unit = parts.units[kTarget],
          .error_unit = parts.units[kError]};
}

State MomentMetric::upgraded(const State& saved) const {
  const State* const former = saved.find("sums");
  if (former == nullptr) return saved;
  const at::Tensor& all = former->as_tensor();  // count, sums of predictions, targets, their squares, their products
  const at::Tensor mixed = all[5];
  const at::Tensor of_prediction = at::stack({all[3], mixed, all[3] - mixed});
  const at::Tensor of_target = at::stack({mixed, all[4], mixed - all[4]});
  State moments = State::map();
  moments["moments"] = detail::moments_from_sums(all[0], at::stack({all[1], all[2], all[1] - all[2]}),
                                                 at::stack({of_prediction, of_target, of_prediction - of_target}));
  return moments;
}

at::Tensor R2Score::compute() const {
  const Moments found = moments();
  // In the unit of the targets; where they are all the same, in that of the errors.
  const at::Tensor unit = at::where(found.target_variance > 0, found.target_unit,
                                    at::maximum(found.error_unit, detail::unit_above(found.mean_error.abs())));
  const at::Tensor divisor = at::where(unit == 0, 1.0, unit);
  const at::Tensor share = found.error_unit / divisor;
  const at::Tensor mean_square_error = found.error_variance * share * share + (found.mean_error / divisor).square();
  return at::where(found.count >= 2, 1 - mean_square_error / found.target_variance, kUndefined);
}

at::Tensor ExplainedVariance::compute() const {
  const Moments found = moments();
  const at::Tensor share = found.error_unit / at::where(found.target_unit == 0, 1.0, found.target_unit);
  const at::Tensor unexplained = found.error_variance / found.target_variance;
  // Errors without variance have a unit of 0, or a tiny one.
  return 1 - at::where(found.target_variance > 0, unexplained * share * share, unexplained);
}

at::Tensor PearsonCorrelation::compute() const {
  const Moments found = moments();
  const at::Tensor deviations = found.prediction_variance.sqrt() * found.target_variance.sqrt();
  return (found.covariance / deviations).clamp(-1, 1);
}

SpearmanCorrelation::SpearmanCorrelation() {
  add_state("predictions", at::empty({0}, at::kFloat), Reduction::kConcatenate);
  add_state("targets", at::empty({0}, at::kFloat), Reduction::kConcatenate);
}

SpearmanCorrelation& SpearmanCorrelation::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const UpdateScope scope(*this);
  check_pair("SpearmanCorrelation", predictions, targets);
  ensure_device(predictions.device());
  append_rows(0, detail::without_rounding(predictions).reshape(-1));
  append_rows(1, detail::without_rounding(targets).reshape(-1));
  return *this;
}

at::Tensor SpearmanCorrelation::compute() const {
  const bool has_nan = at::isnan(state(0)).any().item<bool>() || at::isnan(state(1)).any().item<bool>();
  // NaN has no rank.
  if (state(0).numel() == 0 || has_nan) return at::full({}, kUndefined, at::kDouble);
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
  const at::Tensor first = in_units_of_rows(predictions.detach().to(at::kDouble));
  const at::Tensor second = in_units_of_rows(targets.detach().to(at::kDouble));
  const at::Tensor lengths = first.square().sum(1).sqrt() * second.square().sum(1).sqrt();
  const at::Tensor cosines = (first * second).sum(1) / lengths;
  state(0).add_(at::stack({cosines.sum(), at::full({}, static_cast<double>(predictions.size(0)), cosines.options())}));
  return *this;
}

at::Tensor CosineSimilarity::compute() const { return state(0)[0] / state(0)[1]; }

}  // namespace levin::metrics
