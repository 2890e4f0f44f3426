#include <levin/core/optim/sgd.h>

#include <levin/core/base/error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/scalar_tensor.h>

namespace levin::optim {

void SGDOptions::describe(Schema<SGDOptions>& schema) {
  schema.field("lr", &SGDOptions::lr, "learning rate").at_least(0);
  schema.field("momentum", &SGDOptions::momentum, "momentum factor").at_least(0);
  schema.field("dampening", &SGDOptions::dampening, "dampening of the momentum");
  schema.field("weight_decay", &SGDOptions::weight_decay, "L2 penalty").at_least(0);
  schema.field("nesterov", &SGDOptions::nesterov, "Nesterov momentum");
  schema.field("maximize", &SGDOptions::maximize, "ascend instead of descend");
}

namespace {

SGD::Groups checked(SGD::Groups groups) {
  for (const auto& group : groups)
    if (group.options.nesterov && (group.options.momentum <= 0 || group.options.dampening != 0))
      throw ConfigError("sgd.nesterov needs a momentum above 0 and a dampening of 0; got momentum " +
                        std::to_string(group.options.momentum) + " and dampening " +
                        std::to_string(group.options.dampening));
  return groups;
}

}  // namespace

SGD::SGD(std::vector<at::Tensor> params, const SGDOptions& options)
    : FusedOptimizerOf("sgd", checked({{std::move(params), options}}), options) {}

SGD::SGD(Groups groups) : FusedOptimizerOf("sgd", checked(std::move(groups))) {}

GradientLayouts SGD::gradient_layouts(size_t group) const {
  const SGDOptions& options = group_options(group);
  return options.momentum == 0 && options.weight_decay == 0 ? GradientLayouts::kDenseOrSparse : GradientLayouts::kDense;
}

std::span<const StateField> SGD::state_fields(size_t group) const {
  static constexpr StateField kFields[] = {{"momentum_buffer"}};
  return std::span(kFields).first(group_options(group).momentum != 0 ? 1 : 0);
}

namespace {

/// In place of LibTorch 2.11's fused kernel of the CPU, which computes wrongly in 16 bits from 16 elements on. Rounds
/// after each operation, as torch.optim.SGD does.
void step_in_16_bits(const SGDOptions& options, const at::Tensor& rate, bool first_step, at::Tensor param,
                     at::Tensor grad, at::Tensor buffer) {
  at::Tensor change = options.maximize ? grad.neg() : grad;
  if (options.weight_decay != 0) change = change.add(param, options.weight_decay);
  if (buffer.defined()) {
    if (first_step)
      buffer.copy_(change);
    else
      buffer.mul_(options.momentum).add_(change, 1 - options.dampening);
    change = options.nesterov ? change.add(buffer, options.momentum) : buffer;
  }
  param.sub_(change * rate);
}

}  // namespace

void SGD::update(size_t group, TensorLists& lists, const KernelScaling& scaling) {
  const SGDOptions& options = group_options(group);
  if (lists.device.is_cpu() && (lists.dtype == at::kHalf || lists.dtype == at::kBFloat16)) {
    if (scaling.found_inf && scaling.found_inf->item<float>() != 0) return;
    const at::Tensor rate =
        lists.learning_rate.defined() ? lists.learning_rate : at::scalar_tensor(options.lr, at::kDouble);
    for (size_t i = 0; i < lists.params.size(); ++i) {
      if (scaling.grad_scale) lists.grads[i].div_(*scaling.grad_scale);
      step_in_16_bits(options, rate, lists.first_step, lists.params[i], lists.grads[i],
                      options.momentum != 0 ? lists.states[0][i] : at::Tensor());
    }
    return;
  }
  const auto step = [&](const auto& learning_rate) {
    at::_fused_sgd_(lists.params, lists.grads, lists.states[0], options.weight_decay, options.momentum, learning_rate,
                    options.dampening, options.nesterov, options.maximize, lists.first_step && options.momentum != 0,
                    scaling.grad_scale, scaling.found_inf);
  };
  lists.learning_rate.defined() ? step(lists.learning_rate) : step(options.lr);
}

}  // namespace levin::optim
