#include <levin/core/optim/adagrad.h>

#include <ATen/ops/_fused_adagrad.h>

namespace levin::optim {

void AdagradOptions::describe(Schema<AdagradOptions>& schema) {
  schema.field("lr", &AdagradOptions::lr, "learning rate").at_least(0);
  schema.field("lr_decay", &AdagradOptions::lr_decay, "decay of the learning rate").at_least(0);
  schema.field("weight_decay", &AdagradOptions::weight_decay, "L2 penalty").at_least(0);
  schema.field("initial_accumulator_value", &AdagradOptions::initial_accumulator_value, "initial value of the sums")
      .at_least(0);
  schema.field("eps", &AdagradOptions::eps, "added to the denominator").at_least(0);
  schema.field("maximize", &AdagradOptions::maximize, "ascend instead of descend");
}

Adagrad::Adagrad(std::vector<at::Tensor> params, const AdagradOptions& options)
    : FusedOptimizerOf("adagrad", {{std::move(params), options}}, options) {}
Adagrad::Adagrad(Groups groups) : FusedOptimizerOf("adagrad", std::move(groups)) {}

GradientLayouts Adagrad::gradient_layouts(size_t group) const {
  return group_options(group).weight_decay == 0 ? GradientLayouts::kDenseOrSparse : GradientLayouts::kDense;
}

std::span<const StateField> Adagrad::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"sum"}};
  return kFields;
}

double Adagrad::initial_value(size_t group, const StateField& /*field*/) const {
  return group_options(group).initial_accumulator_value;
}

void Adagrad::update(size_t group, TensorLists& lists, const KernelScaling& scaling) {
  const AdagradOptions& options = group_options(group);
  const auto step = [&](const auto& learning_rate) {
    at::_fused_adagrad_(lists.params, lists.grads, lists.states[0], lists.steps, learning_rate, options.lr_decay,
                        options.weight_decay, options.eps, options.maximize, scaling.grad_scale, scaling.found_inf);
  };
  lists.learning_rate.defined() ? step(lists.learning_rate) : step(options.lr);
}

}  // namespace levin::optim
