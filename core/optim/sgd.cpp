#include <levin/core/optim/sgd.h>

#include <levin/core/base/error.h>

#include <ATen/ops/_fused_sgd.h>

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

std::span<const StateField> SGD::state_fields(size_t group) const {
  static constexpr StateField kFields[] = {{"momentum_buffer"}};
  return std::span(kFields).first(group_options(group).momentum != 0 ? 1 : 0);
}

void SGD::update(size_t group, TensorLists& lists, const KernelScaling& scaling) {
  const SGDOptions& options = group_options(group);
  const auto step = [&](const auto& learning_rate) {
    at::_fused_sgd_(lists.params, lists.grads, lists.states[0], options.weight_decay, options.momentum, learning_rate,
                    options.dampening, options.nesterov, options.maximize, lists.first_step && options.momentum != 0,
                    scaling.grad_scale, scaling.found_inf);
  };
  lists.learning_rate.defined() ? step(lists.learning_rate) : step(options.lr);
}

}  // namespace levin::optim
