#include <levin/core/metrics/extremes.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/stack.h>

#include <limits>

namespace levin::metrics {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor initial_extreme(double value) { return at::full({}, value, at::kDouble); }

/// In place: updates that are recorded go on with the same memory.
void lower(at::Tensor& least, const at::Tensor& values) {
  if (values.numel() > 0) at::minimum_out(least, least, values.detach().to(at::kDouble).min());
}
void raise(at::Tensor& largest, const at::Tensor& values) {
  if (values.numel() > 0) at::maximum_out(largest, largest, values.detach().to(at::kDouble).max());
}

}  // namespace

Min::Min() { add_state("least", initial_extreme(kInfinity), Reduction::kMin); }

Min& Min::update(const at::Tensor& value) {
  const UpdateScope scope(*this);
  ensure_device(value.device());
  lower(state(0), value);
  return *this;
}

Min& Min::update(double value) {
  const UpdateScope scope(*this);
  lower(state(0), at::full({}, value, state(0).options()));
  return *this;
}

at::Tensor Min::compute() const { return state(0).clone(); }

Max::Max() { add_state("largest", initial_extreme(-kInfinity), Reduction::kMax); }

Max& Max::update(const at::Tensor& value) {
  const UpdateScope scope(*this);
  ensure_device(value.device());
  raise(state(0), value);
  return *this;
}

Max& Max::update(double value) {
  const UpdateScope scope(*this);
  raise(state(0), at::full({}, value, state(0).options()));
  return *this;
}

at::Tensor Max::compute() const { return state(0).clone(); }

MinMax::MinMax() {
  add_state("least", initial_extreme(kInfinity), Reduction::kMin);
  add_state("largest", initial_extreme(-kInfinity), Reduction::kMax);
}

MinMax& MinMax::update(const at::Tensor& value) {
  const UpdateScope scope(*this);
  ensure_device(value.device());
  lower(state(0), value);
  raise(state(1), value);
  return *this;
}

MinMax& MinMax::update(double value) { return update(at::full({}, value, state(0).options())); }

at::Tensor MinMax::compute() const { return at::stack({state(0), state(1)}); }

}  // namespace levin::metrics
