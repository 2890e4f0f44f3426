#include <levin/core/metrics/confusion_matrix.h>

#include <levin/core/metrics/class_counts.h>
#include <levin/core/metrics/input_checks.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <limits>

namespace levin::metrics {
namespace {
/// [num_classes + 1, num_classes + 1]; the last element counts the samples outside the classes.
constexpr size_t kCells = 0;
}  // namespace

void ConfusionMatrixOptions::describe(Schema<ConfusionMatrixOptions>& schema) {
  schema.field("num_classes", &ConfusionMatrixOptions::num_classes, "number of classes").at_least(2);
  schema.field("normalize", &ConfusionMatrixOptions::normalize, "counts, or shares of a row, a column or all")
      .one_of({"none", "true", "pred", "all"});
}

ConfusionMatrix::ConfusionMatrix(const Options& options) : options_(options) {
  schema_of<Options>().validate(options, "ConfusionMatrix");
  const int64_t size = options.num_classes + 1;
  add_state("counts", at::zeros({size, size}, at::kLong), Reduction::kSum);
}

ConfusionMatrix& ConfusionMatrix::update(const at::Tensor& predictions, const at::Tensor& labels) {
  const UpdateScope scope(*this);
  const auto pairs = detail::read_classes("ConfusionMatrix", predictions, labels, options_.num_classes);
  ensure_device(pairs.labels.device());
  const at::Tensor cells = pairs.labels * (options_.num_classes + 1) + pairs.predictions;
  state(kCells).view(-1).scatter_add_(0, cells, at::ones_like(cells));
  return *this;
}

std::string ConfusionMatrix::update_key() const {
  return fmt::format("confusions of {} classes", options_.num_classes);
}

at::Tensor ConfusionMatrix::compute() const {
  const int64_t num_classes = options_.num_classes;
  const int64_t outside = state(kCells)[num_classes][num_classes].item<int64_t>();
  if (outside > 0) detail::throw_outside("ConfusionMatrix", outside, num_classes);
  const at::Tensor counts = state(kCells).narrow(0, 0, num_classes).narrow(1, 0, num_classes);
  if (options_.normalize == "none") return counts.clone();
  at::Tensor divisor;
  if (options_.normalize == "true")
    divisor = counts.sum(1, /*keepdim=*/true);
  else if (options_.normalize == "pred")
    divisor = counts.sum(0, /*keepdim=*/true);
  else
    divisor = counts.sum();
  const at::Tensor shares = counts.to(at::kDouble) / divisor.clamp_min(1);
  return at::where(counts.sum() > 0, shares, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace levin::metrics
