#include <levin/core/metrics/class_counts.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <limits>
#include <tuple>

namespace levin::metrics::detail {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// 0 where the divisor is 0.
at::Tensor safe_divide(const at::Tensor& dividend, const at::Tensor& divisor) {
  return dividend / at::where(divisor == 0, 1.0, divisor);
}

bool holds_integers(const at::Tensor& tensor) { return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true); }

void check_shapes(std::string_view metric, const at::Tensor& predictions, const at::Tensor& labels, int64_t num_classes,
                  int64_t top_k) {
  const auto fail = [&](const char* what, const char* hint) {
    throw Error(
        "metrics",
        fmt::format("{}: {}; got predictions {} and labels {}; valid: logits [N, {}, ...]{} with integer labels "
                    "[N, ...]; {}",
                    metric, what, c10::str(predictions.sizes(), " ", predictions.scalar_type()),
                    c10::str(labels.sizes(), " ", labels.scalar_type()), num_classes,
                    top_k == 1 ? " or class indices [N, ...]" : "", hint));
  };
  if (!holds_integers(labels)) fail("labels must be integers", "hint: labels.to(torch::kLong)");
  if (labels.dim() == 0) fail("labels have no batch dimension", "hint: unsqueeze(0)");
  if (predictions.dim() == labels.dim() + 1) {
    if (!predictions.is_floating_point())
      fail("logits must be floating-point", "hint: class indices have the labels' shape");
    if (predictions.size(1) != num_classes) fail("the logits have another number of classes", "hint: set num_classes");
    if (predictions.size(0) != labels.size(0) || predictions.sizes().slice(2) != labels.sizes().slice(1))
      fail("predictions and labels do not fit", "hint: both need the same samples");
    return;
  }
  if (predictions.sizes() != labels.sizes())
    fail("predictions and labels do not fit", "hint: labels of shape [N, 1] need squeeze(1)");
  if (top_k != 1) fail("top_k above 1 needs logits", "hint: class indices do not say which class comes second");
  if (!holds_integers(predictions))
    fail("class indices must be integers", "hint: scores of a binary task need a threshold first, (scores > 0.5)");
}

}  // namespace

Average parse_average(std::string_view name) {
  if (name == "micro") return Average::kMicro;
  if (name == "macro") return Average::kMacro;
  if (name == "weighted") return Average::kWeighted;
  LEVIN_CHECK(name == "none", "an average that the options did not check");
  return Average::kNone;
}

void set_outside_apart(ClassPairs& pairs, int64_t num_classes) {
  const at::Tensor outside = (pairs.labels < 0)
                                 .logical_or_(pairs.labels >= num_classes)
                                 .logical_or_(pairs.predictions < 0)
                                 .logical_or_(pairs.predictions >= num_classes);
  pairs.labels = pairs.labels.masked_fill(outside, num_classes);
  pairs.predictions = pairs.predictions.masked_fill(outside, num_classes);
}

ClassPairs read_classes(std::string_view metric, const at::Tensor& predictions, const at::Tensor& labels,
                        int64_t num_classes, int64_t top_k) {
  check_shapes(metric, predictions, labels, num_classes, top_k);
  check_same_device(metric, "predictions and labels", predictions, labels);
  const bool are_logits = predictions.dim() > labels.dim();
  at::Tensor classes = predictions;
  if (are_logits && top_k == 1) {
    classes = predictions.argmax(1);
  } else if (are_logits) {
    const at::Tensor best = std::get<1>(predictions.topk(top_k, 1));
    const at::Tensor hit = (best == labels.unsqueeze(1)).any(1);
    classes = at::where(hit, labels.to(at::kLong), best.select(1, 0));
  }
  ClassPairs pairs{.predictions = classes.reshape(-1).to(at::kLong), .labels = labels.reshape(-1).to(at::kLong)};
  check_classes(metric, pairs.labels, num_classes);
  if (!are_logits) check_classes(metric, pairs.predictions, num_classes);
  if (!pairs.labels.is_cpu()) set_outside_apart(pairs, num_classes);
  return pairs;
}

at::Tensor empty_class_counts(int64_t num_classes) { return at::zeros({3, num_classes + 1}, at::kLong); }

std::string class_counts_key(int64_t num_classes, int64_t top_k) {
  return fmt::format("counts of {} classes by the best {}", num_classes, top_k);
}

void add_class_counts(at::Tensor& counts, const ClassPairs& pairs) {
  const at::Tensor ones = at::ones_like(pairs.labels);
  const at::Tensor hits = (pairs.predictions == pairs.labels).to(at::kLong);
  counts.scatter_add_(1, at::stack({pairs.labels, pairs.predictions, pairs.labels}), at::stack({hits, ones, ones}));
}

ClassCounts read_class_counts(std::string_view metric, const at::Tensor& counts) {
  const int64_t num_classes = counts.size(1) - 1;
  const int64_t outside = counts[2][num_classes].item<int64_t>();
  if (outside > 0) throw_outside(metric, outside, num_classes);
  const at::Tensor inside = counts.narrow(1, 0, num_classes).to(at::kDouble);
  return {.hits = inside[0],
          .predicted = inside[1],
          .labelled = inside[2],
          .neither = inside[2].sum() - inside[1] - inside[2] + inside[0]};
}

at::Tensor precision_score(const ClassCounts& counts) { return safe_divide(counts.hits, counts.predicted); }

at::Tensor recall_score(const ClassCounts& counts) { return safe_divide(counts.hits, counts.labelled); }

at::Tensor f1_score(const ClassCounts& counts) {
  return safe_divide(2 * counts.hits, counts.predicted + counts.labelled);
}

at::Tensor f_beta_score(const ClassCounts& counts, double beta) {
  const double square = beta * beta;
  return safe_divide((1 + square) * counts.hits, counts.predicted + square * counts.labelled);
}

at::Tensor specificity_score(const ClassCounts& counts) {
  return safe_divide(counts.neither, counts.neither + counts.predicted - counts.hits);
}

at::Tensor jaccard_score(const ClassCounts& counts) {
  return safe_divide(counts.hits, counts.predicted + counts.labelled - counts.hits);
}

at::Tensor hamming_score(const ClassCounts& counts) { return 1 - recall_score(counts); }

at::Tensor average_score(const ClassScore& score, const ClassCounts& counts, Average average, bool labelled_only) {
  const at::Tensor samples = counts.labelled.sum();
  if (average == Average::kMicro) {
    const ClassCounts all{.hits = counts.hits.sum(),
                          .predicted = counts.predicted.sum(),
                          .labelled = samples,
                          .neither = counts.neither.sum()};
    return at::where(samples > 0, score(all), kNan);
  }
  const at::Tensor scores = score(counts);
  if (average == Average::kNone) return at::where(samples > 0, scores, kNan);
  at::Tensor weights = counts.labelled;
  if (average == Average::kMacro)
    weights = ((labelled_only ? counts.labelled : counts.predicted + counts.labelled) > 0).to(at::kDouble);
  return (weights * scores).sum() / weights.sum();
}

}  // namespace levin::metrics::detail
