#include <levin/core/precision/mixed_precision.h>

#include <levin/core/base/log.h>

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <utility>

namespace levin {
namespace {

/// So many skipped steps in a row are no longer the search for a scale, which takes up to 16 from the default one.
constexpr int64_t kFirstWarning = 32;

std::vector<at::Tensor> parameters_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

}  // namespace

MixedPrecision::MixedPrecision(at::ScalarType type, std::optional<GradScalerOptions> scaling)
    : TruePrecision(at::kFloat), type_(type), next_warning_(kFirstWarning) {
  if (scaling) scaler_.emplace(*scaling);
}

std::string MixedPrecision::name() const { return type_ == at::kHalf ? "16-mixed" : "bf16-mixed"; }

void MixedPrecision::set_up(const at::Device& device) {
  require_type(device, type_);
  device_type_ = device.type();
  unscaled_.clear();
  skipped_told_ = 0;
  next_warning_ = kFirstWarning;
  if (scaler_) scaler_->set_device(device);
}

ForwardSettings MixedPrecision::enter_forward() {
  TruePrecision::enter_forward();
  const ForwardSettings before{.autocast = at::autocast::is_autocast_enabled(device_type_),
                               .autocast_type = at::autocast::get_autocast_dtype(device_type_)};
  at::autocast::set_autocast_enabled(device_type_, true);
  at::autocast::set_autocast_dtype(device_type_, type_);
  return before;
}

void MixedPrecision::exit_forward(const ForwardSettings& before) {
  at::autocast::set_autocast_enabled(device_type_, before.autocast);
  at::autocast::set_autocast_dtype(device_type_, before.autocast_type);
  TruePrecision::exit_forward(before);
}

at::Tensor MixedPrecision::scale_loss(const at::Tensor& loss) { return scaler_ ? scaler_->scale(loss) : loss; }

StepScaling MixedPrecision::unscale(torch::optim::Optimizer& optimizer) {
  // A step by hand is inside of the forward that goes on with the new weights.
  WeightCastScope::forget();
  if (!scaler_) return {};
  if (const auto done = find_unscaled(optimizer); done != unscaled_.end())
    return {.grad_scale = {}, .found_inf = done->found_inf};
  unscaled_.push_back({.optimizer = &optimizer, .found_inf = scaler_->unscale(parameters_of(optimizer))});
  return {.grad_scale = {}, .found_inf = unscaled_.back().found_inf};
}

void MixedPrecision::note_step(const torch::optim::Optimizer& optimizer) {
  for (Unscaled& done : unscaled_) done.stepped |= done.optimizer == &optimizer;
}

std::vector<MixedPrecision::Unscaled>::iterator MixedPrecision::find_unscaled(
    const torch::optim::Optimizer& optimizer) {
  return std::ranges::find_if(unscaled_,
                              [&](const Unscaled& done) { return done.optimizer == &optimizer && !done.stepped; });
}

void MixedPrecision::restore_scale(torch::optim::Optimizer& optimizer, bool stepped) {
  if (!scaler_) return;
  const auto done = find_unscaled(optimizer);
  const bool is_unscaled = done != unscaled_.end();
  if (is_unscaled || stepped)
    scaler_->restore(parameters_of(optimizer), is_unscaled && !stepped ? done->found_inf : at::Tensor());
  if (is_unscaled) unscaled_.erase(done);
}

void MixedPrecision::abandon_window() {
  std::erase_if(unscaled_, [](const Unscaled& done) { return !done.stepped; });
}

void MixedPrecision::note_waiting(torch::optim::Optimizer& optimizer) {
  if (!scaler_) return;
  const auto parameters = parameters_of(optimizer);
  waiting_parameters_.insert(waiting_parameters_.end(), parameters.begin(), parameters.end());
}

void MixedPrecision::end_window() {
  if (!scaler_) return;
  std::vector<at::Tensor> found_inf;
  for (const Unscaled& done : unscaled_) found_inf.push_back(done.found_inf);
  unscaled_.clear();
  scaler_->update(found_inf, std::exchange(waiting_parameters_, {}));
}

int64_t MixedPrecision::take_skipped_steps(bool wait) {
  if (!scaler_ || (!wait && !scaler_->on_host())) return 0;
  const GradScaler::Skipped skipped = scaler_->skipped();
  warn_of_skipped_steps(skipped.in_a_row);
  const int64_t news = skipped.all - skipped_told_;
  skipped_told_ = skipped.all;
  return news;
}

void MixedPrecision::warn_of_skipped_steps(int64_t in_a_row) {
  if (in_a_row == 0) next_warning_ = kFirstWarning;
  if (in_a_row < next_warning_) return;
  next_warning_ = 2 * in_a_row;
  log::rank_zero_warning(
      fmt::format("[precision] the last {} optimizer steps were skipped: gradients were not finite, whatever the loss "
                  "was scaled by (now {:g}); hint: look for a NaN with trainer.detect_anomaly, lower the learning "
                  "rate, clip gradients, or take precision: bf16-mixed",
                  in_a_row, scaler_->current_scale()));
}

State MixedPrecision::state_dict() const {
  State state = scaler_ ? scaler_->state_dict() : State::map();
  if (scaler_) state["skipped_told"] = skipped_told_;
  return state;
}

void MixedPrecision::load_state_dict(const State& state) {
  // A run saved in another precision has no scale: it starts with the first one.
  if (!scaler_ || state.find("scale") == nullptr) return;
  scaler_->load_state_dict(state);
  skipped_told_ = state.at("skipped_told").as_int();
}

}  // namespace levin
