#include <levin/core/optim/lookahead.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <c10/core/InferenceMode.h>

#include <utility>
#include <vector>

namespace levin::optim {
namespace {
constexpr const char* kSlowWeights = "slow_weights";
constexpr const char* kLookaheadSteps = "lookahead_steps";
}  // namespace

void LookaheadOptions::describe(Schema<LookaheadOptions>& schema) {
  schema.field("k", &LookaheadOptions::k, "steps of the base for one of the slow weights").at_least(1);
  schema.field("alpha", &LookaheadOptions::alpha, "fraction of the way from the slow weights to the base's")
      .above(0)
      .at_most(1);
}

Lookahead::Lookahead(std::shared_ptr<torch::optim::Optimizer> base, const Options& options)
    : WrappedOptimizer("lookahead", std::move(base)), options_(options) {
  schema_of<Options>().validate(options, "lookahead");
}

at::Tensor Lookahead::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const c10::InferenceMode normal_mode(false);
  const at::NoGradGuard no_grad;
  remember_weights();
  step_base();
  if (++steps_ % options_.k == 0) step_slow_weights();
  return loss;
}

void Lookahead::remember_weights() {
  for (const auto& group : param_groups_) {
    for (const auto& param : group.params()) {
      at::Tensor& slow = slow_weights_[param.unsafeGetTensorImpl()];
      if (!slow.defined())
        slow = param.detach().clone();
      else if (slow.device() != param.device() || slow.scalar_type() != param.scalar_type())
        slow = slow.to(param.options().requires_grad(false));  // of a parameter that was moved or converted since
    }
  }
}

void Lookahead::step_slow_weights() {
  for (const auto& group : param_groups_) {
    std::vector<at::Tensor> fast;
    std::vector<at::Tensor> slow;
    for (const auto& param : group.params()) {
      fast.push_back(param.detach());
      slow.push_back(slow_weights_.at(param.unsafeGetTensorImpl()));
    }
    if (fast.empty()) continue;
    at::_foreach_lerp_(slow, fast, options_.alpha);
    at::_foreach_copy_(fast, slow);
  }
}

void Lookahead::load_parameter_states(const ParameterNames& names, const State& states) {
  steps_ = 0;  // of a state from before the first step
  WrappedOptimizer::load_parameter_states(names, states);
}

void Lookahead::save_own(const at::Tensor& param, State& saved) const {
  const auto slow = slow_weights_.find(param.unsafeGetTensorImpl());
  if (slow == slow_weights_.end()) return;
  saved[kSlowWeights] = slow->second;
  saved[kLookaheadSteps] = steps_;
}

void Lookahead::load_own(const at::Tensor& param, State* saved) {
  if (saved == nullptr || !saved->contains(kSlowWeights)) {
    slow_weights_.erase(param.unsafeGetTensorImpl());
    return;
  }
  const c10::InferenceMode normal_mode(false);
  const at::NoGradGuard no_grad;
  at::Tensor& slow = slow_weights_[param.unsafeGetTensorImpl()];
  if (!slow.defined()) slow = param.detach().clone();
  copy_in_place(slow, saved->at(kSlowWeights).as_tensor(), kSlowWeights);
  steps_ = saved->at(kLookaheadSteps).as_int();
  saved->as_map().erase(kSlowWeights);
  saved->as_map().erase(kLookaheadSteps);
}

}  // namespace levin::optim
