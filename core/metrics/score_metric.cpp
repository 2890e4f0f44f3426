#include <levin/core/metrics/score_metric.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

namespace levin::metrics {
namespace {

// Exact.
constexpr size_t kScores = 0;  ///< [samples], or [samples, classes]
constexpr size_t kLabels = 1;  ///< [samples]

// Binned. [classes, negative or positive, thresholds + 2]: bin b holds the scores that reach b thresholds. No
// probability falls into the first, since a threshold is 0; the last is for NaN.
constexpr size_t kBins = 0;

}  // namespace

ScoreMetric::ScoreMetric(const char* name, int64_t num_classes, int64_t thresholds, bool from_logits)
    : name_(name), num_classes_(num_classes), from_logits_(from_logits) {
  if (thresholds > 0) {
    const OrdinaryTensors scope;
    thresholds_ = at::linspace(0, 1, thresholds, at::kFloat);
    add_state("bins", at::zeros({is_binary() ? 1 : num_classes, 2, thresholds + 2}, at::kLong), Reduction::kSum);
    return;
  }
  const std::vector<int64_t> no_rows = is_binary() ? std::vector<int64_t>{0} : std::vector<int64_t>{0, num_classes};
  add_state("scores", at::empty(no_rows, at::kFloat), Reduction::kConcatenate);
  add_state("labels", at::empty({0}, at::kLong), Reduction::kConcatenate);
}

std::string ScoreMetric::update_key() const {
  return fmt::format("scores of {} classes, {} thresholds{}", num_classes_, is_binned() ? thresholds_.numel() : 0,
                     from_logits_ ? ", of logits" : "");
}

void ScoreMetric::throw_not_probabilities(const char* got) const {
  throw Error("metrics", fmt::format("{}: scores are no probabilities, which thresholds need; got {}; valid: 0 to 1; "
                                     "hint: set from_logits",
                                     name_, got));
}

void ScoreMetric::check_input(const at::Tensor& scores, const at::Tensor& labels) const {
  const auto fail = [&](const char* what, const char* hint) {
    const std::string valid = is_binary() ? std::string("scores of the positive class in the labels' shape")
                                          : fmt::format("scores [N, {}] with labels [N]", num_classes_);
    throw Error("metrics", fmt::format("{}: {}; got scores {} and labels {}; valid: {}; {}", name_, what,
                                       c10::str(scores.sizes(), " ", scores.scalar_type()),
                                       c10::str(labels.sizes(), " ", labels.scalar_type()), valid, hint));
  };
  if (!scores.is_floating_point()) fail("scores must be floating-point", "hint: scores, not predicted classes");
  if (!at::isIntegralType(labels.scalar_type(), /*includeBool=*/true))
    fail("labels must be integers", "hint: labels.to(torch::kLong)");
  if (is_binary() && scores.sizes() != labels.sizes())
    fail("scores and labels do not fit", "hint: of two columns pass one, scores.softmax(1).select(1, 1)");
  if (!is_binary() &&
      (scores.dim() != 2 || labels.dim() != 1 || scores.size(0) != labels.size(0) || scores.size(1) != num_classes_))
    fail("scores and labels do not fit", "hint: set num_classes");
  detail::check_same_device(name_, "scores and labels", scores, labels);
}

ScoreMetric& ScoreMetric::update(const at::Tensor& scores, const at::Tensor& labels) {
  const UpdateScope scope(*this);
  check_input(scores, labels);
  ensure_device(scores.device());
  const at::Tensor flat_labels = labels.reshape(-1).to(at::kLong);
  detail::check_classes(name_, flat_labels, num_classes_);
  at::Tensor values = detail::without_rounding(scores);
  if (!is_binary() && from_logits_) {
    values = at::softmax(values, 1, at::kDouble);
  } else if (is_binary()) {
    values = values.reshape(-1);
    // A sigmoid changes no order, and rounding would make ties.
    if (is_binned() && from_logits_) values = at::sigmoid(values.to(at::kDouble));
  }
  if (is_binned()) {
    add_to_bins(values, flat_labels);
  } else {
    append_rows(kScores, values);
    append_rows(kLabels, flat_labels);
  }
  return *this;
}

void ScoreMetric::add_to_bins(const at::Tensor& scores, const at::Tensor& labels) {
  if (detail::may_look_at(scores) && (scores < 0).logical_or_(scores > 1).any().item<bool>())
    throw_not_probabilities("values outside 0 to 1");
  if (thresholds_.device() != scores.device()) thresholds_ = thresholds_.to(scores.device());
  at::Tensor& bins = state(kBins);
  const int64_t curves = bins.size(0);
  const int64_t width = bins.size(2);
  const at::Tensor columns = scores.reshape({-1, curves});
  const at::Tensor classes = at::arange(curves, labels.options());
  const at::Tensor positive = labels.unsqueeze(1) == (is_binary() ? classes + 1 : classes);
  at::Tensor places =
      at::bucketize(columns, thresholds_.to(columns.scalar_type()), /*out_int32=*/false, /*right=*/true);
  places = places.masked_fill(at::isnan(columns), width - 1);
  const at::Tensor cells = ((2 * classes + positive) * width + places).reshape(-1);
  bins.view(-1).scatter_add_(0, cells, at::ones_like(cells));
}

std::vector<ScoreMetric::Counts> ScoreMetric::counts() const {
  std::vector<Counts> found;
  if (is_binned()) {
    const at::Tensor& bins = state(kBins);
    if (bins.select(2, 0).sum().item<int64_t>() > 0) throw_not_probabilities("negative values");
    const int64_t thresholds = bins.size(2) - 2;
    // [classes, 2, thresholds], by descending threshold.
    const at::Tensor reached = bins.narrow(2, 1, thresholds).flip(2).cumsum(2);
    const at::Tensor nans = bins.select(2, -1).sum(1).cpu();
    for (int64_t i = 0; i < bins.size(0); ++i)
      found.push_back({.thresholds = thresholds_.to(bins.device()).flip(0),
                       .true_positives = reached[i][1],
                       .false_positives = reached[i][0],
                       .positives = reached[i][1][thresholds - 1],
                       .negatives = reached[i][0][thresholds - 1],
                       .has_nan = nans[i].item<int64_t>() > 0});
    return found;
  }
  const at::Tensor& scores = state(kScores);
  const at::Tensor& labels = state(kLabels);
  const int64_t outside = (labels < 0).logical_or_(labels >= num_classes_).sum().item<int64_t>();
  if (outside > 0) detail::throw_outside(name_, outside, num_classes_);
  for (int64_t i = 0; i < (is_binary() ? 1 : num_classes_); ++i) {
    const at::Tensor values = is_binary() ? scores : scores.select(1, i);
    const at::Tensor positive = labels == (is_binary() ? 1 : i);
    const auto [distinct, places, numbers] =
        at::_unique2(values, /*sorted=*/true, /*return_inverse=*/true, /*return_counts=*/true);
    const at::Tensor positives = at::zeros_like(numbers).scatter_add_(0, places, positive.to(at::kLong));
    const at::Tensor all_positives = positive.sum();
    found.push_back({.thresholds = distinct.flip(0),
                     .true_positives = positives.flip(0).cumsum(0),
                     .false_positives = (numbers - positives).flip(0).cumsum(0),
                     .positives = all_positives,
                     .negatives = values.numel() - all_positives,
                     .has_nan = at::isnan(values).any().item<bool>()});
  }
  return found;
}

at::Tensor detail::average_values(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& positives,
                                  const std::string& average) {
  const at::Tensor all = at::stack(values);
  if (average == "none") return all;
  const at::Tensor numbers = at::stack(positives);
  const at::Tensor weights = average == "weighted" ? numbers.to(at::kDouble) : (numbers > 0).to(at::kDouble);
  return (at::where(weights > 0, all, 0.0) * weights).sum() / weights.sum();
}

}  // namespace levin::metrics
