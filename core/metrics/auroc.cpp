#include <levin/core/metrics/auroc.h>

#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace levin::metrics {

void AurocOptions::describe(Schema<AurocOptions>& schema) {
  schema.field("num_classes", &AurocOptions::num_classes, "number of classes; 2 is a binary task").at_least(2);
  schema.field("thresholds", &AurocOptions::thresholds, "0: exact; else this many thresholds over [0, 1]")
      .require("0 or at least 2", [](int64_t count) { return count == 0 || count >= 2; });
  schema.field("average", &AurocOptions::average, "the mean over classes, or a value a class")
      .one_of({"macro", "none"});
  schema.field("from_logits", &AurocOptions::from_logits, "whether scores are logits, not probabilities");
}

Auroc::Auroc(const Options& options)
    : ScoreMetric("Auroc", detail::checked_options(options, "Auroc").num_classes, options.thresholds,
                  options.from_logits),
      options_(options) {}

at::Tensor Auroc::compute() const {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> pairs;
  for (const Counts& counts : this->counts()) {
    pairs.push_back(counts.positives.to(at::kDouble) * counts.negatives);
    if (counts.has_nan) {
      values.push_back(detail::undefined_value(counts.positives));
      continue;
    }
    // Whole numbers up to the last division, float64 because products may be above 2^63. Each negative at a threshold
    // loses to the positives above and ties with those at it.
    const at::Tensor none = at::zeros({1}, counts.true_positives.options());
    const at::Tensor negatives = at::diff(counts.false_positives, 1, 0, none);
    const at::Tensor positives = at::diff(counts.true_positives, 1, 0, none);
    const at::Tensor twice_won = (negatives.to(at::kDouble) * (2 * counts.true_positives - positives)).sum();
    values.push_back(twice_won / (2 * pairs.back()));
  }
  return is_binary() ? values.front() : detail::average_values(values, pairs, options_.average);
}

}  // namespace levin::metrics
