#include <levin/core/metrics/stacked_values.h>

#include <levin/core/base/error.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <limits>
#include <utility>

namespace levin::metrics {
namespace {
constexpr size_t kStacked = 0;
}  // namespace

StackedValues::StackedValues(Options options) : options_(std::move(options)) {
  if (!options_.reduce) throw Error("metrics", "StackedValues: needs a function, `reduce`");
  add_state("values", at::empty({0}, at::kDouble), Reduction::kConcatenate);
}

StackedValues& StackedValues::update(const at::Tensor& value) {
  const UpdateScope scope(*this);
  ensure_device(value.device());
  append_rows(kStacked, value.detach().to(at::kDouble).reshape({-1}));
  return *this;
}

StackedValues& StackedValues::update(double value) { return update(at::full({}, value, state(kStacked).options())); }

at::Tensor StackedValues::compute() const {
  const at::Tensor& values = state(kStacked);
  if (values.size(0) == 0) return at::full({}, std::numeric_limits<double>::quiet_NaN(), values.options());
  return options_.reduce(values);
}

}  // namespace levin::metrics
