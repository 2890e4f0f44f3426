#include <levin/core/metrics/calibration_error.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <tuple>

namespace levin::metrics {
namespace {
/// [3, n_bins + 2], float64: samples, confidences and hits. As in torchmetrics, a confidence of 1 has a bin of its own;
/// the last is for what is no probability.
constexpr size_t kCalibrationBins = 0;
}  // namespace

void CalibrationErrorOptions::describe(Schema<CalibrationErrorOptions>& schema) {
  schema.field("num_classes", &CalibrationErrorOptions::num_classes, "number of classes; 2 is a binary task")
      .at_least(2);
  schema.field("n_bins", &CalibrationErrorOptions::n_bins, "bins of confidence over [0, 1]").at_least(1);
  schema.field("norm", &CalibrationErrorOptions::norm, "mean, root of the mean square, or worst bin")
      .one_of({"l1", "l2", "max"});
  schema.field("from_logits", &CalibrationErrorOptions::from_logits, "whether scores are logits, not probabilities");
}

CalibrationError::CalibrationError(const Options& options)
    : options_(detail::checked_options(options, "CalibrationError")) {
  const OrdinaryTensors scope;
  boundaries_ = at::linspace(0, 1, options.n_bins + 1, options.from_logits ? at::kDouble : at::kFloat);
  add_state("bins", at::zeros({3, options.n_bins + 2}, at::kDouble), Reduction::kSum);
}

std::string CalibrationError::update_key() const {
  return fmt::format("calibration of {} classes, {} bins{}", options_.num_classes, options_.n_bins,
                     options_.from_logits ? ", of logits" : "");
}

void CalibrationError::check_input(const at::Tensor& scores, const at::Tensor& labels) const {
  const bool is_binary = options_.num_classes == 2;
  const bool fits = is_binary ? scores.sizes() == labels.sizes()
                              : scores.dim() == labels.dim() + 1 && labels.dim() > 0 &&
                                    scores.size(0) == labels.size(0) && scores.size(1) == options_.num_classes &&
                                    scores.sizes().slice(2) == labels.sizes().slice(1);
  if (!fits || !scores.is_floating_point() || !at::isIntegralType(labels.scalar_type(), /*includeBool=*/true))
    throw Error("metrics",
                fmt::format("CalibrationError: scores and labels do not fit; got scores {} and labels {}; valid: {}; "
                            "hint: set num_classes",
                            c10::str(scores.sizes(), " ", scores.scalar_type()),
                            c10::str(labels.sizes(), " ", labels.scalar_type()),
                            is_binary ? std::string("floating-point scores of the positive class in the shape of "
                                                    "integer labels")
                                      : fmt::format("floating-point scores [N, {}, ...] with integer labels [N, ...]",
                                                    options_.num_classes)));
  detail::check_same_device("CalibrationError", "scores and labels", scores, labels);
}

CalibrationError& CalibrationError::update(const at::Tensor& scores, const at::Tensor& labels) {
  const UpdateScope scope(*this);
  check_input(scores, labels);
  ensure_device(scores.device());
  const at::Tensor classes = labels.reshape(-1).to(at::kLong);
  detail::check_classes("CalibrationError", classes, options_.num_classes);
  at::Tensor values = detail::without_rounding(scores);
  at::Tensor confidences;
  at::Tensor hits;
  if (options_.num_classes == 2) {
    confidences = (options_.from_logits ? at::sigmoid(values.to(at::kDouble)) : values).reshape(-1);
    hits = classes == 1;
  } else {
    if (options_.from_logits) values = at::softmax(values, 1, at::kDouble);
    const auto [best, predicted] = values.max(1);
    confidences = best.reshape(-1);
    hits = predicted.reshape(-1) == classes;
  }
  const at::Tensor outside = (confidences < 0).logical_or(confidences > 1);
  if (detail::may_look_at(confidences) && outside.any().item<bool>())
    throw Error("metrics",
                "CalibrationError: scores are no probabilities; got values outside 0 to 1; valid: 0 to 1; hint: set "
                "from_logits");
  const auto type = confidences.scalar_type();
  if (boundaries_.scalar_type() != type) boundaries_ = at::linspace(0, 1, options_.n_bins + 1, type);
  if (boundaries_.device() != scores.device()) boundaries_ = boundaries_.to(scores.device());
  at::Tensor places = at::bucketize(confidences, boundaries_, /*out_int32=*/false, /*right=*/true) - 1;
  const at::Tensor unknown = (classes < 0).logical_or(classes >= options_.num_classes);
  places = places.masked_fill(outside.logical_or(unknown), options_.n_bins + 1).unsqueeze(0).expand({3, -1});
  const at::Tensor wide = confidences.to(at::kDouble);
  state(kCalibrationBins).scatter_add_(1, places, at::stack({at::ones_like(wide), wide, hits.to(at::kDouble)}));
  return *this;
}

at::Tensor CalibrationError::compute() const {
  const at::Tensor& bins = state(kCalibrationBins);
  if (bins[0][options_.n_bins + 1].item<double>() > 0)
    throw Error("metrics",
                fmt::format("CalibrationError: scores are no probabilities or labels are out of range; got {} such "
                            "samples; valid: scores of 0 to 1, labels of 0 to {}; hint: set from_logits or num_classes",
                            bins[0][options_.n_bins + 1].item<double>(), options_.num_classes - 1));
  const at::Tensor samples = bins[0].narrow(0, 0, options_.n_bins + 1);
  const at::Tensor all = samples.sum();
  const at::Tensor distances = (bins[1] - bins[2]).abs().narrow(0, 0, options_.n_bins + 1) / samples.clamp_min(1);
  const at::Tensor of_all = samples / all;  // NaN before any update
  if (options_.norm == "max") return (distances + 0 * of_all).max();
  if (options_.norm == "l2") return (distances.square() * of_all).sum().sqrt();
  return (distances * of_all).sum();
}

}  // namespace levin::metrics
