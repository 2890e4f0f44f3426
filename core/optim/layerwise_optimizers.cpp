#include <levin/core/optim/layerwise_optimizers.h>

#include <levin/core/optim/element_update.h>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>

#include <utility>

namespace levin::optim {

void LAMBOptions::describe(Schema<LAMBOptions>& schema) {
  schema.field("lr", &LAMBOptions::lr, "learning rate").at_least(0);
  schema.field("betas", &LAMBOptions::betas, "decay rates of the means of the gradient and of its square")
      .require("two numbers from 0 to below 1", [](const std::array<double, 2>& betas) {
        return betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
      });
  schema.field("eps", &LAMBOptions::eps, "added to the denominator").at_least(0);
  schema.field("weight_decay", &LAMBOptions::weight_decay, "decoupled weight decay").at_least(0);
  schema.field("always_adapt", &LAMBOptions::always_adapt, "adapt parameters without a weight decay too");
}

void LARSOptions::describe(Schema<LARSOptions>& schema) {
  schema.field("lr", &LARSOptions::lr, "learning rate").at_least(0);
  schema.field("momentum", &LARSOptions::momentum, "momentum factor").at_least(0);
  schema.field("dampening", &LARSOptions::dampening, "dampening of the momentum");
  schema.field("weight_decay", &LARSOptions::weight_decay, "L2 penalty").at_least(0);
  schema.field("nesterov", &LARSOptions::nesterov, "Nesterov momentum");
  schema.field("trust_coeff", &LARSOptions::trust_coeff, "step relative to the weights' norm, at learning rate 1")
      .above(0);
  schema.field("eps", &LARSOptions::eps, "added to the denominator").at_least(0);
  schema.field("always_adapt", &LARSOptions::always_adapt, "adapt parameters without a weight decay too");
}

LAMB::LAMB(std::vector<at::Tensor> params, const LAMBOptions& options)
    : ElementOptimizerOf("lamb", {{std::move(params), options}}, options) {}
LAMB::LAMB(Groups groups) : ElementOptimizerOf("lamb", std::move(groups)) {}

LARS::LARS(std::vector<at::Tensor> params, const LARSOptions& options)
    : ElementOptimizerOf("lars", {{std::move(params), options}}, options) {}
LARS::LARS(Groups groups) : ElementOptimizerOf("lars", std::move(groups)) {}

std::span<const StateField> LAMB::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"exp_avg"}, {"exp_avg_sq"}};
  return kFields;
}

std::span<const StateField> LARS::state_fields(size_t group) const {
  static constexpr StateField kFields[] = {{"momentum_buffer"}};
  return std::span(kFields).first(group_options(group).momentum != 0 ? 1 : 0);
}

namespace {

/// The last of the states is where the update goes.
struct LambUpdate {
  double mean_correction, square_correction, eps, weight_decay;
  std::array<double, 2> betas;

  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& mean, V& square, V& update) const {
    using C = detail::Constant<V>;
    mean = mean * C(betas[0]) + grad * C(1 - betas[0]);
    square = square * C(betas[1]) + grad * grad * C(1 - betas[1]);
    update = mean * C(mean_correction) / (detail::square_root(square) * C(square_correction) + C(eps)) +
             param * C(weight_decay);
  }
};

/// `a` / `b`, or 1 where one of them is 0; nobody waits for the device.
at::Tensor ratio_or_one(const at::Tensor& a, const at::Tensor& b, const at::Tensor& quotient) {
  return at::where(a.gt(0).logical_and(b.gt(0)), quotient, 1);
}

}  // namespace

void LAMB::update_parameter(const LAMBOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                            const std::array<at::Tensor, 3>& states) {
  const at::Tensor update = at::empty_like(param);
  detail::update_elements<3>(param, grad, {states[0], states[1], update},
                             LambUpdate{.mean_correction = 1 / (1 - std::pow(options.betas[0], step)),
                                        .square_correction = 1 / std::sqrt(1 - std::pow(options.betas[1], step)),
                                        .eps = options.eps,
                                        .weight_decay = options.weight_decay,
                                        .betas = options.betas});
  if (options.weight_decay != 0 || options.always_adapt) {
    const at::Tensor weights = at::linalg_vector_norm(param);
    const at::Tensor size = at::linalg_vector_norm(update);
    param.addcmul_(update, ratio_or_one(weights, size, weights / size), -options.lr);
  } else {
    param.sub_(update, options.lr);
  }
}

void LARS::update_parameter(const LARSOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                            const std::array<at::Tensor, 3>& states) {
  at::Tensor update = grad;
  if (options.weight_decay != 0) update = update.add(param, options.weight_decay);
  if (options.weight_decay != 0 || options.always_adapt) {
    const at::Tensor weights = at::linalg_vector_norm(param);
    const at::Tensor size = at::linalg_vector_norm(grad);
    const at::Tensor trust = options.trust_coeff * weights / (size + options.weight_decay * weights + options.eps);
    update = update.mul(ratio_or_one(weights, size, trust));
  }
  if (options.momentum != 0) {
    const at::Tensor& buffer = states[0];
    if (step == 1)
      buffer.copy_(update);
    else
      buffer.mul_(options.momentum).add_(update, 1 - options.dampening);
    update = options.nesterov ? update.add(buffer, options.momentum) : buffer;
  }
  param.sub_(update, options.lr);
}

}  // namespace levin::optim
