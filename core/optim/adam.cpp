#include <levin/core/optim/adam.h>

#include <levin/core/optim/fast_adam.h>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include <optional>

namespace levin::optim {
namespace {

template <class Options>
void describe_adam(Schema<Options>& schema, const char* weight_decay) {
  schema.field("lr", &Options::lr, "learning rate").at_least(0);
  schema.field("betas", &Options::betas, "decay rates of the means of the gradient and of its square")
      .require("two numbers from 0 to below 1", [](const std::array<double, 2>& betas) {
        return betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
      });
  schema.field("eps", &Options::eps, "added to the denominator").at_least(0);
  schema.field("weight_decay", &Options::weight_decay, weight_decay).at_least(0);
  schema.field("amsgrad", &Options::amsgrad, "divide by the largest mean square so far");
  schema.field("maximize", &Options::maximize, "ascend instead of descend");
  schema.field("fast_kernel", &Options::fast_kernel,
               "faster kernel for float32 on CPUs without amsgrad; results differ by rounding");
}

}  // namespace

void AdamOptions::describe(Schema<AdamOptions>& schema) { describe_adam(schema, "L2 penalty"); }
void AdamWOptions::describe(Schema<AdamWOptions>& schema) { describe_adam(schema, "decoupled weight decay"); }

Adam::Adam(std::vector<at::Tensor> params, const AdamOptions& options)
    : FusedOptimizerOf("adam", {{std::move(params), options}}, options) {}
Adam::Adam(Groups groups) : FusedOptimizerOf("adam", std::move(groups)) {}

AdamW::AdamW(std::vector<at::Tensor> params, const AdamWOptions& options)
    : FusedOptimizerOf("adamw", {{std::move(params), options}}, options) {}
AdamW::AdamW(Groups groups) : FusedOptimizerOf("adamw", std::move(groups)) {}

namespace {

constexpr StateField kAdamFields[] = {{"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq"}};

std::span<const StateField> adam_fields(bool amsgrad) { return std::span(kAdamFields).first(amsgrad ? 3 : 2); }

template <class Options>
bool takes_fast_kernel(const Options& options, const c10::Device& device, c10::ScalarType type) {
  return options.fast_kernel && !options.amsgrad && device.is_cpu() && type == at::kFloat;
}

template <class Options>
FastAdamStep fast_step(const Options& options, bool decoupled) {
  return {.lr = options.lr,
          .beta1 = options.betas[0],
          .beta2 = options.betas[1],
          .eps = options.eps,
          .weight_decay = options.weight_decay,
          .decoupled = decoupled,
          .maximize = options.maximize};
}

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

std::span<const StateField> Adam::state_fields(size_t group) const { return adam_fields(group_options(group).amsgrad); }
std::span<const StateField> AdamW::state_fields(size_t group) const {
  return adam_fields(group_options(group).amsgrad);
}

void Adam::update(size_t group, TensorLists& lists, const KernelScaling& scaling) {
  const AdamOptions& options = group_options(group);
  if (takes_fast_kernel(options, lists.device, lists.dtype))
    return fast_adam_(lists.params, lists.grads, lists.states[0], lists.states[1], lists.steps,
                      fast_step(options, /*decoupled=*/false), given(lists.learning_rate), scaling.grad_scale,
                      scaling.found_inf);
  const auto step = [&](const auto& learning_rate) {
    at::_fused_adam_(lists.params, lists.grads, lists.states[0], lists.states[1], lists.states[2], lists.steps,
                     learning_rate, options.betas[0], options.betas[1], options.weight_decay, options.eps,
                     options.amsgrad, options.maximize, scaling.grad_scale, scaling.found_inf);
  };
  lists.learning_rate.defined() ? step(lists.learning_rate) : step(options.lr);
}

void AdamW::update(size_t group, TensorLists& lists, const KernelScaling& scaling) {
  const AdamWOptions& options = group_options(group);
  if (takes_fast_kernel(options, lists.device, lists.dtype))
    return fast_adam_(lists.params, lists.grads, lists.states[0], lists.states[1], lists.steps,
                      fast_step(options, /*decoupled=*/true), given(lists.learning_rate), scaling.grad_scale,
                      scaling.found_inf);
  const auto step = [&](const auto& learning_rate) {
    at::_fused_adamw_(lists.params, lists.grads, lists.states[0], lists.states[1], lists.states[2], lists.steps,
                      learning_rate, options.betas[0], options.betas[1], options.weight_decay, options.eps,
                      options.amsgrad, options.maximize, scaling.grad_scale, scaling.found_inf);
  };
  lists.learning_rate.defined() ? step(lists.learning_rate) : step(options.lr);
}

}  // namespace levin::optim
