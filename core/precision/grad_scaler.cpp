#include <levin/core/precision/grad_scaler.h>

#include <levin/core/base/gradient_groups.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <limits>

namespace levin {
namespace {

void multiply_gradients(const std::vector<at::Tensor>& parameters, const at::Tensor& factor) {
  for (const auto& group : gradient_groups(parameters))
    at::_foreach_mul_(group, factor.reshape({}).to(group.front().options()));
}

}  // namespace

void GradScalerOptions::describe(Schema<GradScalerOptions>& schema) {
  using Options = GradScalerOptions;
  schema.field("init_scale", &Options::init_scale, "initial loss scale").above(0);
  schema
      .field("growth_factor", &Options::growth_factor,
             "factor of the scale after growth_interval steps without an infinity")
      .above(1);
  schema.field("backoff_factor", &Options::backoff_factor, "factor of the scale after a step with an infinity")
      .above(0)
      .below(1);
  schema.field("growth_interval", &Options::growth_interval, "optimizer steps").at_least(1);
}

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) { set_device(at::kCPU); }

void GradScaler::set_device(const at::Device& device) {
  const c10::InferenceMode ordinary(false);
  const auto on = at::TensorOptions().device(device);
  scale_ = at::full({1}, options_.init_scale, on.dtype(at::kFloat));
  growth_tracker_ = at::zeros({1}, on.dtype(at::kInt));
  skipped_ = at::zeros({2}, on.dtype(at::kDouble));
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return loss * scale_.reshape(loss.sizes()).to(loss.device(), /*non_blocking=*/true);
}

at::Tensor GradScaler::unscale(const std::vector<at::Tensor>& parameters) {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  at::Tensor found_inf = at::zeros({1}, scale_.options());
  // As torch.amp.GradScaler: exact for the powers of two that the scale usually is.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  for (const auto& group : gradient_groups(parameters)) {
    const at::Device device = group.front().device();
    if (device == scale_.device()) {
      at::_amp_foreach_non_finite_check_and_unscale_(group, found_inf, inverse);
      continue;
    }
    at::Tensor found_there = at::zeros({1}, scale_.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(group, found_there, inverse.to(device));
    found_inf = at::maximum(found_inf, found_there.to(scale_.device()));
  }
  return found_inf;
}

void GradScaler::restore(const std::vector<at::Tensor>& parameters, const at::Tensor& found_inf) const {
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  multiply_gradients(parameters, found_inf.defined()
                                     ? at::where(found_inf == 0, scale_, std::numeric_limits<float>::quiet_NaN())
                                     : scale_);
}

void GradScaler::update(const std::vector<at::Tensor>& found_inf, const std::vector<at::Tensor>& scaled) {
  if (found_inf.empty()) return;
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  at::Tensor any = found_inf.front();
  for (size_t i = 1; i < found_inf.size(); ++i) any = at::maximum(any, found_inf[i]);
  // in_a_row = (in_a_row + 1) where this one is skipped, else 0.
  skipped_.add_(any);
  skipped_.slice(0, 1, 2).mul_(any);
  const at::Tensor former = scaled.empty() ? at::Tensor() : scale_.clone();
  at::_amp_update_scale_(scale_, growth_tracker_, any, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  if (former.defined()) multiply_gradients(scaled, scale_ / former);
}

double GradScaler::current_scale() const { return scale_.item<double>(); }

GradScaler::Skipped GradScaler::skipped() const {
  const at::Tensor counts = skipped_.cpu();
  const double* count = counts.const_data_ptr<double>();
  return {.all = static_cast<int64_t>(count[0]), .in_a_row = static_cast<int64_t>(count[1])};
}

State GradScaler::state_dict() const {
  const Skipped counts = skipped();
  State state = State::map();
  state["scale"] = current_scale();
  state["growth_tracker"] = growth_tracker_.item<int64_t>();
  state["skipped"] = counts.all;
  state["skipped_in_a_row"] = counts.in_a_row;
  // For those that read it elsewhere: the options say how it goes on.
  state["growth_factor"] = options_.growth_factor;
  state["backoff_factor"] = options_.backoff_factor;
  state["growth_interval"] = options_.growth_interval;
  return state;
}

void GradScaler::load_state_dict(const State& state) {
  const at::NoGradGuard no_grad;
  scale_.fill_(state.at("scale").as_double());
  growth_tracker_.fill_(state.at("growth_tracker").as_int());
  skipped_.slice(0, 0, 1).fill_(state.at("skipped").as_int());
  skipped_.slice(0, 1, 2).fill_(state.at("skipped_in_a_row").as_int());
}

}  // namespace levin
