#include <levin/core/metrics/metric_tracker.h>

#include <levin/core/base/error.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <cmath>

namespace levin::metrics {

void ValueTracker::add(const at::Tensor& value) {
  if (!values_.empty() && value.sizes() != values_.front().sizes())
    throw Error("metrics", fmt::format("MetricTracker: a value has another shape than those before; got {}; valid: {}",
                                       c10::str(value.sizes()), c10::str(values_.front().sizes())));
  values_.push_back(value.detach().to(at::TensorOptions().device(at::kCPU).dtype(at::kDouble), /*non_blocking=*/false,
                                      /*copy=*/true));
}

void ValueTracker::add(double value) { add(at::full({}, value, at::kDouble)); }

at::Tensor ValueTracker::values() const { return values_.empty() ? at::empty({0}, at::kDouble) : at::stack(values_); }

ValueTracker::Best ValueTracker::best() const {
  if (values_.empty()) throw Error("metrics", "MetricTracker: there is no value yet; hint: increment() adds one");
  if (values_.front().numel() != 1)
    throw Error("metrics", fmt::format("MetricTracker: values of several elements have no best; got {}; valid: one",
                                       c10::str(values_.front().sizes())));
  Best found{.value = values_.front().item<double>(), .index = 0};
  for (size_t i = 1; i < values_.size(); ++i) {
    const double value = values_[i].item<double>();
    const bool is_better = maximize_ ? value > found.value : value < found.value;
    if (is_better || (std::isnan(found.value) && !std::isnan(value)))
      found = {.value = value, .index = static_cast<int64_t>(i)};
  }
  return found;
}

State ValueTracker::state_dict() const {
  State state = State::map();
  State& values = state["values"] = State::list();
  for (const auto& value : values_) values.push_back(value.clone());
  return state;
}

void ValueTracker::load_state_dict(const State& state) {
  values_.clear();
  for (const auto& value : state.at("values").as_list()) add(value.as_tensor());
}

}  // namespace levin::metrics
