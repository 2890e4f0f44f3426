#include <levin/core/metrics/curves.h>

#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace levin::metrics {
namespace {

constexpr double kUndefinedPoint = std::numeric_limits<double>::quiet_NaN();
constexpr double kAboveAll = std::numeric_limits<double>::infinity();

template <class Options>
void describe_scores(Schema<Options>& schema) {
  schema.field("num_classes", &Options::num_classes, "number of classes; 2 is a binary task").at_least(2);
  schema.field("thresholds", &Options::thresholds, "0: exact; else this many thresholds over [0, 1]")
      .require("0 or at least 2", [](int64_t count) { return count == 0 || count >= 2; });
  schema.field("from_logits", &Options::from_logits, "whether scores are logits, not probabilities");
}

/// 0 / 0 is NaN.
at::Tensor shares(const at::Tensor& part, const at::Tensor& whole) {
  return part.to(at::kDouble) / whole.to(at::kDouble);
}

at::Tensor extended(double first, const at::Tensor& values) {
  return at::cat({at::full({1}, first, values.options()), values});
}

/// By descending threshold.
struct PrecisionsAndRecalls {
  at::Tensor precisions;
  at::Tensor recalls;
  at::Tensor thresholds;

  template <class Counts>
  explicit PrecisionsAndRecalls(const Counts& counts)
      : precisions(shares(counts.true_positives, counts.true_positives + counts.false_positives)),
        recalls(shares(counts.true_positives, counts.positives)),
        thresholds(counts.thresholds.to(at::kDouble)) {
    if (!counts.has_nan) return;
    for (at::Tensor* values : {&precisions, &recalls, &thresholds}) *values = at::full_like(*values, kUndefinedPoint);
  }
};

/// The largest `value` of the points whose `condition` is at least `least`, and its threshold; of equal ones that with
/// the largest condition, then threshold. {0, NaN} where there is none.
std::pair<at::Tensor, at::Tensor> best_point(const at::Tensor& values, const at::Tensor& conditions,
                                             const at::Tensor& thresholds, double least, bool is_undefined) {
  const auto scalar = [&](double value) { return at::full({}, value, values.options()); };
  if (is_undefined) return {scalar(kUndefinedPoint), scalar(kUndefinedPoint)};
  at::Tensor candidates = (conditions >= least).logical_and(values > 0);
  if (!candidates.any().item<bool>()) return {scalar(0), scalar(kUndefinedPoint)};
  at::Tensor best;
  for (const at::Tensor* column : {&values, &conditions, &thresholds}) {
    const at::Tensor largest = at::where(candidates, *column, -kAboveAll).max();
    candidates = candidates.logical_and(*column == largest);
    if (!best.defined()) best = largest;
  }
  return {best, at::where(candidates, thresholds, -kAboveAll).max()};
}

}  // namespace

void AveragePrecisionOptions::describe(Schema<AveragePrecisionOptions>& schema) {
  describe_scores(schema);
  schema
      .field("average", &AveragePrecisionOptions::average, "the mean over classes, also by samples, or a value a class")
      .one_of({"macro", "weighted", "none"});
}

void CurveOptions::describe(Schema<CurveOptions>& schema) { describe_scores(schema); }

void PrecisionAtFixedRecallOptions::describe(Schema<PrecisionAtFixedRecallOptions>& schema) {
  schema.field("min_recall", &PrecisionAtFixedRecallOptions::min_recall, "least recall of a threshold")
      .at_least(0)
      .at_most(1);
  describe_scores(schema);
}

void RecallAtFixedPrecisionOptions::describe(Schema<RecallAtFixedPrecisionOptions>& schema) {
  schema.field("min_precision", &RecallAtFixedPrecisionOptions::min_precision, "least precision of a threshold")
      .at_least(0)
      .at_most(1);
  describe_scores(schema);
}

AveragePrecision::AveragePrecision(const Options& options)
    : ScoreMetric("AveragePrecision", detail::checked_options(options, "AveragePrecision").num_classes,
                  options.thresholds, options.from_logits),
      options_(options) {}

at::Tensor AveragePrecision::compute() const {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> positives;
  for (const Counts& counts : this->counts()) {
    const PrecisionsAndRecalls points(counts);
    const at::Tensor rises = at::diff(points.recalls, 1, 0, at::zeros({1}, points.recalls.options()));
    // Where no score reaches a threshold, nothing has risen.
    const at::Tensor precisions = counts.has_nan ? points.precisions : points.precisions.nan_to_num(/*nan=*/0);
    const at::Tensor area = (rises * precisions).sum();
    values.push_back(at::where(counts.positives > 0, area, kUndefinedPoint));
    positives.push_back(counts.positives);
  }
  return is_binary() ? values.front() : detail::average_values(values, positives, options_.average);
}

CurveMetric::CurveMetric(const char* name, const Options& options)
    : ScoreMetric(name, detail::checked_options(options, name).num_classes, options.thresholds, options.from_logits) {}

at::Tensor CurveMetric::compute() const {
  const std::vector<Curve> found = curves();
  int64_t longest = 0;
  for (const Curve& curve : found) longest = std::max(longest, curve.x.numel());
  std::vector<at::Tensor> rows;
  for (const Curve& curve : found)
    rows.push_back(at::constant_pad_nd(at::stack({curve.x, curve.y, curve.thresholds}), {0, longest - curve.x.numel()},
                                       kUndefinedPoint));
  return is_binary() ? rows.front() : at::stack(rows);
}

std::vector<Curve> PrecisionRecallCurve::curves() const {
  std::vector<Curve> found;
  for (const Counts& counts : this->counts()) {
    const PrecisionsAndRecalls points(counts);
    found.push_back({.x = extended(0, points.recalls).flip(0),
                     .y = extended(1, points.precisions).flip(0),
                     .thresholds = extended(kAboveAll, points.thresholds).flip(0)});
  }
  return found;
}

std::vector<Curve> Roc::curves() const {
  std::vector<Curve> found;
  for (const Counts& counts : this->counts()) {
    Curve curve{.x = counts.false_positives.to(at::kDouble),
                .y = counts.true_positives.to(at::kDouble),
                .thresholds = counts.thresholds.to(at::kDouble)};
    if (counts.has_nan)
      curve = {.x = at::full_like(curve.x, kUndefinedPoint),
               .y = at::full_like(curve.x, kUndefinedPoint),
               .thresholds = at::full_like(curve.x, kUndefinedPoint)};
    if (!is_binned())
      curve = {
          .x = extended(0, curve.x), .y = extended(0, curve.y), .thresholds = extended(kAboveAll, curve.thresholds)};
    curve.x = curve.x / counts.negatives;
    curve.y = curve.y / counts.positives;
    found.push_back(std::move(curve));
  }
  return found;
}

PrecisionAtFixedRecall::PrecisionAtFixedRecall(const Options& options)
    : ScoreMetric("PrecisionAtFixedRecall", detail::checked_options(options, "PrecisionAtFixedRecall").num_classes,
                  options.thresholds, options.from_logits),
      options_(options) {}

RecallAtFixedPrecision::RecallAtFixedPrecision(const Options& options)
    : ScoreMetric("RecallAtFixedPrecision", detail::checked_options(options, "RecallAtFixedPrecision").num_classes,
                  options.thresholds, options.from_logits),
      options_(options) {}

namespace {

/// Values and thresholds of each class.
template <class AllCounts>
std::pair<at::Tensor, at::Tensor> best_points(const AllCounts& of_classes, bool of_recall, double least) {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> thresholds;
  for (const auto& counts : of_classes) {
    const PrecisionsAndRecalls points(counts);
    const bool is_undefined = counts.has_nan || (counts.positives + counts.negatives).template item<int64_t>() == 0;
    const auto [value, threshold] =
        best_point(of_recall ? points.recalls : points.precisions, of_recall ? points.precisions : points.recalls,
                   points.thresholds, least, is_undefined);
    values.push_back(value);
    thresholds.push_back(threshold);
  }
  if (values.size() == 1) return {values.front(), thresholds.front()};
  return {at::stack(values), at::stack(thresholds)};
}

}  // namespace

at::Tensor PrecisionAtFixedRecall::compute() const {
  return best_points(counts(), /*of_recall=*/false, options_.min_recall).first;
}
at::Tensor PrecisionAtFixedRecall::threshold() const {
  return best_points(counts(), /*of_recall=*/false, options_.min_recall).second;
}
at::Tensor RecallAtFixedPrecision::compute() const {
  return best_points(counts(), /*of_recall=*/true, options_.min_precision).first;
}
at::Tensor RecallAtFixedPrecision::threshold() const {
  return best_points(counts(), /*of_recall=*/true, options_.min_precision).second;
}

}  // namespace levin::metrics
