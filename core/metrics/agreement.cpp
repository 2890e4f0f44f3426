#include <levin/core/metrics/agreement.h>

#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/where.h>

#include <limits>

namespace levin::metrics {
void AgreementOptions::describe(Schema<AgreementOptions>& schema) {
  schema.field("num_classes", &AgreementOptions::num_classes, "number of classes").at_least(2);
}

MatthewsCorrelation::MatthewsCorrelation(const Options& options)
    : ConfusionMatrix({.num_classes = detail::checked_options(options, "MatthewsCorrelation").num_classes}) {}

at::Tensor MatthewsCorrelation::compute() const {
  const at::Tensor counts = ConfusionMatrix::compute().to(at::kDouble);
  const at::Tensor samples = counts.sum();
  const at::Tensor labelled = counts.sum(1);
  const at::Tensor predicted = counts.sum(0);
  // Sums over classes in which nothing large is subtracted from something as large.
  const at::Tensor hits = counts.diagonal();
  const at::Tensor neither = samples - predicted - labelled + hits;
  const at::Tensor covariance = (hits * neither - (predicted - hits) * (labelled - hits)).sum();
  const at::Tensor predicted_variance = predicted.dot(samples - predicted);
  const at::Tensor labelled_variance = labelled.dot(samples - labelled);
  const at::Tensor deviations = predicted_variance.sqrt() * labelled_variance.sqrt();
  const at::Tensor correlation = at::where(deviations > 0, covariance / deviations, 0.0);
  return at::where(samples > 0, correlation, std::numeric_limits<double>::quiet_NaN());
}

void CohenKappaOptions::describe(Schema<CohenKappaOptions>& schema) {
  schema.field("num_classes", &CohenKappaOptions::num_classes, "number of classes").at_least(2);
  schema.field("weights", &CohenKappaOptions::weights, "how much a disagreement counts by the distance of the classes")
      .one_of({"none", "linear", "quadratic"});
}

CohenKappa::CohenKappa(const Options& options)
    : ConfusionMatrix({.num_classes = detail::checked_options(options, "CohenKappa").num_classes}),
      weights_(options.weights) {}

at::Tensor CohenKappa::compute() const {
  const at::Tensor counts = ConfusionMatrix::compute().to(at::kDouble);
  const int64_t classes = counts.size(0);
  const at::Tensor expected = at::outer(counts.sum(1), counts.sum(0)) / counts.sum();
  const at::Tensor places = at::arange(classes, counts.options());
  const at::Tensor distance = (places.unsqueeze(1) - places).abs();
  const at::Tensor weights = weights_ == "linear"      ? distance
                             : weights_ == "quadratic" ? distance.square()
                                                       : (distance > 0).to(at::kDouble);
  return 1 - (weights * counts).sum() / (weights * expected).sum();
}

}  // namespace levin::metrics
