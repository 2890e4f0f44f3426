#include <levin/core/interfaces/optimizer_handle.h>

#include <levin/core/base/error.h>
#include <levin/core/optim/fused_optimizer.h>

#include <torch/optim/optimizer.h>

#include <unordered_set>

namespace levin {

OptimizerHandle::OptimizerHandle(std::shared_ptr<torch::optim::Optimizer> optimizer, int64_t index, Driver driver)
    : optimizer_(std::move(optimizer)),
      fused_(dynamic_cast<optim::FusedOptimizer*>(optimizer_.get())),
      index_(index),
      needs_closure_(optim::capabilities_of(*optimizer_).needs_closure),
      driver_(std::move(driver)) {
  for (const auto& group : optimizer_->param_groups())
    parameters_.insert(parameters_.end(), group.params().begin(), group.params().end());
}

double OptimizerHandle::learning_rate(size_t group) const {
  return optimizer_->param_groups().at(group).options().get_lr();
}

void OptimizerHandle::zero_grad() {
  awaits_step_ = false;
  for (const auto& parameter : parameters_) parameter.mutable_grad().reset();
}

void OptimizerHandle::step(const Closure& closure) { driver_(*this, closure); }

void OptimizerHandle::take_step(const StepScaling& scaling, const std::function<at::Tensor()>& closure) {
  awaits_step_ = false;
  if (fused_ != nullptr) {
    fused_->fused_step(scaling);
    return;
  }
  if (scaling.found_inf.defined() || scaling.grad_scale.defined())
    throw Error("optimizer",
                "this optimizer cannot take a scaled step; hint: use one of levin::optim with this precision");
  if (closure)
    optimizer_->step(closure);
  else
    optimizer_->step();
}

void OptimizerHandle::toggle(const std::vector<OptimizerHandle*>& all) {
  toggled_ = true;
  std::unordered_set<const c10::TensorImpl*> mine;
  for (const auto& parameter : parameters_) mine.insert(parameter.unsafeGetTensorImpl());
  for (const auto* other : all) {
    if (other == this) continue;
    for (auto parameter : other->parameters_) {
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
