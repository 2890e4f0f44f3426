#include <levin/core/metrics/auroc.h>

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

#include <limits>
#include <vector>

namespace levin::metrics {
namespace {

// Exact.
constexpr size_t kScores = 0;  ///< [samples], or [samples, classes]
constexpr size_t kLabels = 1;  ///< [samples]

// Binned. [classes, negative or positive, thresholds + 2]: bin b holds the scores that reach b thresholds. No
// probability falls into the first, since a threshold is 0; the last is for NaN.
constexpr size_t kBins = 0;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The area under a curve, and how many pairs of a positive and a negative sample it is an average of.
struct Area {
  at::Tensor value;
  at::Tensor pairs;
};

/// From the numbers of negative and positive samples by ascending score, [scores]. Whole numbers up to the last
/// division: the order of samples changes nothing.
Area ranked_area(const at::Tensor& negatives, const at::Tensor& positives) {
  const at::Tensor negatives_below = negatives.cumsum(0) - negatives;
  const at::Tensor twice_won = (positives * (2 * negatives_below + negatives)).sum();
  const at::Tensor pairs = positives.sum() * negatives.sum();
  return {.value = twice_won.to(at::kDouble) / (2 * pairs), .pairs = pairs};
}

/// From the score of each sample and whether it is positive, [samples].
Area exact_area(const at::Tensor& scores, const at::Tensor& positive) {
  const auto [values, places, counts] =
      at::_unique2(scores, /*sorted=*/true, /*return_inverse=*/true, /*return_counts=*/true);
  const at::Tensor positives = at::zeros_like(counts).scatter_add_(0, places, positive.to(at::kLong));
  Area area = ranked_area(counts - positives, positives);
  area.value = at::where(at::isnan(scores).any(), kNan, area.value);
  return area;
}

/// From the bins of one class, [2, thresholds + 2].
Area binned_area(const at::Tensor& bins) {
  const at::Tensor numbers = bins.narrow(1, 0, bins.size(1) - 1);
  Area area = ranked_area(numbers[0], numbers[1]);
  area.value = at::where(bins.select(1, -1).sum() > 0, kNan, area.value);
  return area;
}

/// Waits for the device.
void check_range(const at::Tensor& labels, int64_t num_classes) {
  const int64_t outside = (labels < 0).logical_or_(labels >= num_classes).sum().item<int64_t>();
  if (outside > 0) detail::throw_outside("Auroc", outside, num_classes);
}

[[noreturn]] void throw_not_probabilities(const char* got) {
  throw Error("metrics",
              fmt::format("Auroc: scores are no probabilities, which thresholds need; got {}; valid: 0 to 1; "
                          "hint: set from_logits",
                          got));
}

}  // namespace

void AurocOptions::describe(Schema<AurocOptions>& schema) {
  schema.field("num_classes", &AurocOptions::num_classes, "number of classes; 2 is a binary task").at_least(2);
  schema.field("thresholds", &AurocOptions::thresholds, "0: exact; else this many thresholds over [0, 1]")
      .require("0 or at least 2", [](int64_t count) { return count == 0 || count >= 2; });
  schema.field("average", &AurocOptions::average, "the mean over classes, or a value a class")
      .one_of({"macro", "none"});
  schema.field("from_logits", &AurocOptions::from_logits, "whether scores are logits, not probabilities");
}

Auroc::Auroc(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "Auroc");
  if (is_binned()) {
    const OrdinaryTensors scope;
    thresholds_ = at::linspace(0, 1, options.thresholds, at::kFloat);
    const int64_t curves = is_binary() ? 1 : options.num_classes;
    add_state("bins", at::zeros({curves, 2, options.thresholds + 2}, at::kLong), Reduction::kSum);
    return;
  }
  const std::vector<int64_t> no_rows =
      is_binary() ? std::vector<int64_t>{0} : std::vector<int64_t>{0, options.num_classes};
  add_state("scores", at::empty(no_rows, at::kFloat), Reduction::kConcatenate);
  add_state("labels", at::empty({0}, at::kLong), Reduction::kConcatenate);
}

void Auroc::check_input(const at::Tensor& scores, const at::Tensor& labels) const {
  const auto fail = [&](const char* what, const char* hint) {
    const std::string valid = is_binary() ? std::string("scores of the positive class in the labels' shape")
                                          : fmt::format("scores [N, {}] with labels [N]", options_.num_classes);
    throw Error("metrics", fmt::format("Auroc: {}; got scores {} and labels {}; valid: {}; {}", what,
                                       c10::str(scores.sizes(), " ", scores.scalar_type()),
                                       c10::str(labels.sizes(), " ", labels.scalar_type()), valid, hint));
  };
  if (!scores.is_floating_point()) fail("scores must be floating-point", "hint: scores, not predicted classes");
  if (!at::isIntegralType(labels.scalar_type(), /*includeBool=*/true))
    fail("labels must be integers", "hint: labels.to(torch::kLong)");
  if (is_binary() && scores.sizes() != labels.sizes())
    fail("scores and labels do not fit", "hint: of two columns pass one, scores.softmax(1).select(1, 1)");
  if (!is_binary() && (scores.dim() != 2 || labels.dim() != 1 || scores.size(0) != labels.size(0) ||
                       scores.size(1) != options_.num_classes))
    fail("scores and labels do not fit", "hint: set num_classes");
  detail::check_same_device("Auroc", "scores and labels", scores, labels);
}

Auroc& Auroc::update(const at::Tensor& scores, const at::Tensor& labels) {
  const UpdateScope scope(*this);
  check_input(scores, labels);
  ensure_device(scores.device());
  const at::Tensor flat_labels = labels.reshape(-1).to(at::kLong);
  detail::check_classes("Auroc", flat_labels, options_.num_classes);
  at::Tensor values = scores.to(at::kFloat);
  if (!is_binary() && options_.from_logits) {
    values = at::softmax(values, 1);
  } else if (is_binary()) {
    values = values.reshape(-1);
    // A sigmoid changes no order, and rounding would make ties.
    if (is_binned() && options_.from_logits) values = at::sigmoid(values);
  }
  if (is_binned()) {
    add_to_bins(values, flat_labels);
  } else {
    append_rows(kScores, values);
    append_rows(kLabels, flat_labels);
  }
  return *this;
}

void Auroc::add_to_bins(const at::Tensor& scores, const at::Tensor& labels) {
  if (scores.is_cpu() && (scores < 0).logical_or_(scores > 1).any().item<bool>())
    throw_not_probabilities("values outside 0 to 1");
  if (thresholds_.device() != scores.device()) thresholds_ = thresholds_.to(scores.device());
  at::Tensor& bins = state(kBins);
  const int64_t curves = bins.size(0);
  const int64_t width = bins.size(2);
  const at::Tensor columns = scores.reshape({-1, curves});
  const at::Tensor classes = at::arange(curves, labels.options());
  const at::Tensor positive = labels.unsqueeze(1) == (is_binary() ? classes + 1 : classes);
  at::Tensor places = at::bucketize(columns, thresholds_, /*out_int32=*/false, /*right=*/true);
  places = places.masked_fill(at::isnan(columns), width - 1);
  const at::Tensor cells = ((2 * classes + positive) * width + places).reshape(-1);
  bins.view(-1).scatter_add_(0, cells, at::ones_like(cells));
}

at::Tensor Auroc::compute() const {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> pairs;
  const auto add = [&](const Area& area) {
    values.push_back(area.value);
    pairs.push_back(area.pairs);
  };
  if (is_binned()) {
    const at::Tensor& bins = state(kBins);
    if (bins.select(2, 0).sum().item<int64_t>() > 0) throw_not_probabilities("negative values");
    for (int64_t i = 0; i < bins.size(0); ++i) add(binned_area(bins[i]));
  } else {
    const at::Tensor& scores = state(kScores);
    const at::Tensor& labels = state(kLabels);
    check_range(labels, options_.num_classes);
    if (is_binary()) {
      add(exact_area(scores, labels == 1));
    } else {
      for (int64_t i = 0; i < options_.num_classes; ++i) add(exact_area(scores.select(1, i), labels == i));
    }
  }
  if (is_binary()) return values.front();
  const at::Tensor areas = at::stack(values);
  if (options_.average == "none") return areas;
  const at::Tensor defined = at::stack(pairs) > 0;
  return at::where(defined, areas, 0.0).sum() / defined.sum();
}

}  // namespace levin::metrics
