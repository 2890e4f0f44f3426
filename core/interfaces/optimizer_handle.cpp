#include <levin/core/interfaces/optimizer_handle.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>
#include <levin/core/optim/fused_optimizer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace levin {

OptimizerHandle::OptimizerHandle(std::shared_ptr<torch::optim::Optimizer> optimizer, int64_t index, Driver driver,
                                 LocalShard local_shard)
    : optimizer_(std::move(optimizer)),
      fused_(dynamic_cast<optim::FusedOptimizer*>(optimizer_.get())),
      index_(index),
      needs_closure_(optim::capabilities_of(*optimizer_).needs_closure),
      driver_(std::move(driver)),
      local_shard_(std::move(local_shard)) {
  for (auto& group : optimizer_->param_groups()) take_places(group.params());
  collect_parameters();
}

void OptimizerHandle::take_places(std::vector<at::Tensor>& parameters) {
  module_parameters_.insert(module_parameters_.end(), parameters.begin(), parameters.end());
  if (!local_shard_) return;
  for (auto& parameter : parameters) parameter = local_shard_(parameter);
}

void OptimizerHandle::collect_parameters() {
  parameters_.clear();
  single_precision_ = true;
  for (const auto& group : optimizer_->param_groups())
    parameters_.insert(parameters_.end(), group.params().begin(), group.params().end());
  for (const auto& parameter : parameters_) single_precision_ &= parameter.scalar_type() == at::kFloat;
}

double OptimizerHandle::learning_rate(size_t group) const {
  return optimizer_->param_groups().at(group).options().get_lr();
}

size_t OptimizerHandle::move_to_new_group(const std::vector<at::Tensor>& module_parameters, double learning_rate) {
  std::unordered_set<const c10::TensorImpl*> moved;
  for (const auto& parameter : module_parameters) moved.insert(parameter.unsafeGetTensorImpl());
  std::erase_if(module_parameters_,
                [&](const auto& parameter) { return moved.contains(parameter.unsafeGetTensorImpl()); });
  std::vector<at::Tensor> parameters = module_parameters;
  take_places(parameters);
  for (const auto& parameter : parameters) moved.insert(parameter.unsafeGetTensorImpl());
  auto& groups = optimizer_->param_groups();
  for (auto& group : groups)
    std::erase_if(group.params(),
                  [&](const at::Tensor& parameter) { return moved.contains(parameter.unsafeGetTensorImpl()); });
  torch::optim::OptimizerParamGroup group(parameters, groups.front().options().clone());
  group.options().set_lr(learning_rate);
  // LibTorch takes a parameter that has state, such as that of a checkpoint, for one of another group.
  auto& states = optimizer_->state();
  std::vector<std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>> kept;
  for (const auto& parameter : parameters)
    if (const auto found = states.find(parameter.unsafeGetTensorImpl()); found != states.end()) {
      kept.emplace_back(found->first, std::move(found->second));
      states.erase(found);
    }
  optimizer_->add_param_group(group);
  for (auto& [parameter, state] : kept) states[parameter] = std::move(state);
  collect_parameters();
  return groups.size() - 1;
}

void OptimizerHandle::zero_grad(bool set_to_none) {
  awaits_step_ = false;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters_) {
    if (set_to_none)
      parameter.mutable_grad().reset();
    else if (const at::Tensor gradient = gradient_values(parameter); gradient.defined())
      gradients.push_back(gradient);
  }
  if (gradients.empty()) return;
  const at::NoGradGuard no_grad;
  at::_foreach_zero_(gradients);
}

void OptimizerHandle::step(const Closure& closure) { driver_(*this, closure); }

void OptimizerHandle::take_step(StepScaling scaling, const std::function<at::Tensor()>& closure) {
  awaits_step_ = false;
  if (divisor_.defined()) scaling.grad_scale = std::exchange(divisor_, {});
  if (fused_ != nullptr) {
    fused_->fused_step(scaling);
    return;
  }
  LEVIN_CHECK(!scaling.grad_scale.defined(), "only fused optimizers divide gradients in their step");
  // An optimizer that does not know of infinities: the host must wait for the word.
  if (scaling.found_inf.defined() && scaling.found_inf.item<float>() != 0) return;
  if (closure)
    optimizer_->step(closure);
  else
    optimizer_->step();
}

void OptimizerHandle::toggle(const std::vector<OptimizerHandle*>& all) {
  toggled_ = true;
  std::unordered_set<const c10::TensorImpl*> mine;
  for (const auto& parameter : module_parameters_) mine.insert(parameter.unsafeGetTensorImpl());
  for (const auto* other : all) {
    if (other == this) continue;
    for (auto parameter : other->module_parameters_) {
      if (mine.count(parameter.unsafeGetTensorImpl()) > 0 || !parameter.requires_grad()) continue;
      parameter.set_requires_grad(false);
      toggled_off_.push_back(parameter);
    }
  }
}

void OptimizerHandle::untoggle() {
  for (auto& parameter : toggled_off_) parameter.set_requires_grad(true);
  toggled_off_.clear();
  toggled_ = false;
}

}  // namespace levin
