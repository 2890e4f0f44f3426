#include <levin/core/metrics/mean.h>

#include <levin/core/base/error.h>
#include <levin/core/metrics/input_checks.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

namespace levin::metrics {
namespace {
constexpr size_t kTotal = 0;
constexpr size_t kWeight = 1;
}  // namespace

Mean::Mean() {
  add_state("total", at::zeros({}, at::kDouble), Reduction::kSum);
  add_state("weight", at::zeros({}, at::kDouble), Reduction::kSum);
}

Mean& Mean::update(const at::Tensor& value, double weight) {
  const UpdateScope scope(*this);
  ensure_device(value.device());
  state(kTotal).add_(value.sum(at::kDouble), weight);
  state(kWeight).add_(weight * static_cast<double>(value.numel()));
  return *this;
}

Mean& Mean::update(const at::Tensor& value, const at::Tensor& weight) {
  const UpdateScope scope(*this);
  if (!at::is_expandable_to(weight.sizes(), value.sizes()))
    throw Error("metrics",
                fmt::format("Mean: weights do not fit the values; got values {} and weights {}; valid: weights "
                            "that broadcast to the values' shape",
                            c10::str(value.sizes()), c10::str(weight.sizes())));
  detail::check_same_device("Mean", "values and weights", value, weight);
  ensure_device(value.device());
  const at::Tensor weights = weight.to(at::kDouble).expand_as(value);
  state(kTotal).add_((value.to(at::kDouble) * weights).sum());
  state(kWeight).add_(weights.sum());
  return *this;
}

Mean& Mean::update(double value, double weight) {
  const UpdateScope scope(*this);
  state(kTotal).add_(value * weight);
  state(kWeight).add_(weight);
  return *this;
}

at::Tensor Mean::compute() const { return state(kTotal) / state(kWeight); }

}  // namespace levin::metrics
