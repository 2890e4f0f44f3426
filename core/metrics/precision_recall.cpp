#include <levin/core/metrics/precision_recall.h>

#include <levin/core/metrics/input_checks.h>

#include <ATen/core/Tensor.h>

#include <utility>

namespace levin::metrics {
namespace {
constexpr size_t kClassCounts = 0;
}  // namespace

void ClassScoreOptions::describe(Schema<ClassScoreOptions>& schema) {
  schema.field("num_classes", &ClassScoreOptions::num_classes, "number of classes").at_least(2);
  schema.field("average", &ClassScoreOptions::average, "over samples, over classes, or a value a class")
      .one_of({"micro", "macro", "weighted", "none"});
}

ClassScoreMetric::ClassScoreMetric(const char* name, const Options& options, detail::ClassScore score)
    : name_(name), options_(options), score_(std::move(score)) {
  schema_of<Options>().validate(options, name);
  add_state("counts", detail::empty_class_counts(options.num_classes), Reduction::kSum);
}

ClassScoreMetric& ClassScoreMetric::update(const at::Tensor& predictions, const at::Tensor& labels) {
  const UpdateScope scope(*this);
  const auto pairs = detail::read_classes(name_, predictions, labels, options_.num_classes);
  ensure_device(pairs.labels.device());
  detail::add_class_counts(state(kClassCounts), pairs);
  return *this;
}

at::Tensor ClassScoreMetric::compute() const {
  return detail::average_score(score_, detail::read_class_counts(name_, state(kClassCounts)),
                               detail::parse_average(options_.average));
}

void FBetaScoreOptions::describe(Schema<FBetaScoreOptions>& schema) {
  schema.field("num_classes", &FBetaScoreOptions::num_classes, "number of classes").at_least(2);
  schema.field("beta", &FBetaScoreOptions::beta, "how many times recall counts as much as precision").above(0);
  schema.field("average", &FBetaScoreOptions::average, "over samples, over classes, or a value a class")
      .one_of({"micro", "macro", "weighted", "none"});
}

FBetaScore::FBetaScore(const Options& options)
    : ClassScoreMetric(
          "FBetaScore",
          {.num_classes = detail::checked_options(options, "FBetaScore").num_classes, .average = options.average},
          [beta = options.beta](const detail::ClassCounts& counts) { return detail::f_beta_score(counts, beta); }) {}

}  // namespace levin::metrics
