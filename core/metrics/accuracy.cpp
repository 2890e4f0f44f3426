#include <levin/core/metrics/accuracy.h>

#include <levin/core/base/error.h>
#include <levin/core/base/recording.h>
#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <functional>
#include <numeric>

namespace levin::metrics {
namespace {

// The micro average needs no counts by class.
constexpr size_t kCorrect = 0;
constexpr size_t kSamples = 1;
constexpr size_t kOutside = 2;

constexpr size_t kCounts = 0;

}  // namespace

void AccuracyOptions::describe(Schema<AccuracyOptions>& schema) {
  schema.field("num_classes", &AccuracyOptions::num_classes, "number of classes").at_least(2);
  schema.field("top_k", &AccuracyOptions::top_k, "how many of the best classes count").at_least(1);
  schema.field("average", &AccuracyOptions::average, "over samples, over classes, or a value a class")
      .one_of({"micro", "macro", "none"});
}

Accuracy::Accuracy(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "Accuracy");
  if (options.top_k > options.num_classes)
    throw ConfigError(fmt::format("Accuracy.top_k must be at most num_classes; got {}; valid: 1 to {}", options.top_k,
                                  options.num_classes));
  average_ = detail::parse_average(options.average);
  if (average_ == detail::Average::kMicro) {
    add_state("correct", at::zeros({}, at::kLong), Reduction::kSum);
    add_state("samples", at::zeros({}, at::kLong), Reduction::kSum);
    add_state("outside", at::zeros({}, at::kLong), Reduction::kSum);
  } else {
    add_state("counts", detail::empty_class_counts(options.num_classes), Reduction::kSum);
  }
}

Accuracy& Accuracy::update(const at::Tensor& predictions, const at::Tensor& labels) {
  const UpdateScope scope(*this);
  const auto pairs = detail::read_classes("Accuracy", predictions, labels, options_.num_classes, options_.top_k);
  ensure_device(pairs.labels.device());
  if (average_ == detail::Average::kMicro) {
    add_micro_counts(pairs);
  } else {
    detail::add_class_counts(state(kCounts), pairs);
  }
  return *this;
}

std::string Accuracy::update_key() const {
  const std::string counts = detail::class_counts_key(options_.num_classes, options_.top_k);
  return average_ == detail::Average::kMicro ? "hits of " + counts : counts;
}

void Accuracy::add_micro_counts(const detail::ClassPairs& pairs) {
  const int64_t samples = pairs.labels.numel();
  if (pairs.labels.is_cpu() && !is_recording()) {
    // The overhead of tensor operations would be many times the work.
    const at::Tensor predictions = pairs.predictions.contiguous();
    const at::Tensor labels = pairs.labels.contiguous();
    const int64_t* predicted = predictions.const_data_ptr<int64_t>();
    *state(kCorrect).mutable_data_ptr<int64_t>() += std::inner_product(
        predicted, predicted + samples, labels.const_data_ptr<int64_t>(), int64_t{0}, std::plus<>(), std::equal_to<>());
    *state(kSamples).mutable_data_ptr<int64_t>() += samples;
    return;
  }
  state(kCorrect).add_((pairs.predictions == pairs.labels).sum());
  state(kSamples).add_(samples);
  state(kOutside).add_((pairs.labels == options_.num_classes).sum());
}

at::Tensor Accuracy::compute() const {
  if (average_ == detail::Average::kMicro) {
    const int64_t outside = state(kOutside).item<int64_t>();
    if (outside > 0) detail::throw_outside("Accuracy", outside, options_.num_classes);
    return state(kCorrect).to(at::kDouble) / state(kSamples);
  }
  return detail::average_score(&detail::recall_score, detail::read_class_counts("Accuracy", state(kCounts)), average_,
                               /*labelled_only=*/options_.top_k > 1);
}

}  // namespace levin::metrics
