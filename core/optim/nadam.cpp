#include <levin/core/optim/nadam.h>

#include <levin/core/optim/element_update.h>

namespace levin::optim {

void NAdamOptions::describe(Schema<NAdamOptions>& schema) {
  schema.field("lr", &NAdamOptions::lr, "learning rate").at_least(0);
  schema.field("betas", &NAdamOptions::betas, "decay rates of the means of the gradient and of its square")
      .require("two numbers from 0 to below 1", [](const std::array<double, 2>& betas) {
        return betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
      });
  schema.field("eps", &NAdamOptions::eps, "added to the denominator").at_least(0);
  schema.field("weight_decay", &NAdamOptions::weight_decay, "L2 penalty").at_least(0);
  schema.field("momentum_decay", &NAdamOptions::momentum_decay, "how fast the momentum reaches its rate").at_least(0);
  schema.field("decoupled_weight_decay", &NAdamOptions::decoupled_weight_decay,
               "decay the weights themselves, as AdamW does");
  schema.field("maximize", &NAdamOptions::maximize, "ascend instead of descend");
}

NAdam::NAdam(std::vector<at::Tensor> params, const NAdamOptions& options)
    : ElementOptimizerOf("nadam", {{std::move(params), options}}, options) {}
NAdam::NAdam(Groups groups) : ElementOptimizerOf("nadam", std::move(groups)) {}

std::span<const StateField> NAdam::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"exp_avg"}, {"exp_avg_sq"}, {.name = "mu_product", .is_number = true}};
  return kFields;
}

namespace {

struct NAdamFormula {
  double sign, penalty, kept, gradient_rate, mean_rate, correction, eps;
  std::array<double, 2> betas;

  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& mean, V& square, V& /*product*/) const {
    using C = detail::Constant<V>;
    const V decayed = param * C(kept);
    const V gradient = grad * C(sign) + decayed * C(penalty);
    mean = detail::moved(mean, gradient, C(1 - betas[0]));
    square = square * C(betas[1]) + gradient * gradient * C(1 - betas[1]);
    const V size = detail::square_root(V(square * C(1 / correction))) + C(eps);
    param = decayed - (gradient * C(gradient_rate) + mean * C(mean_rate)) / size;
  }
};

/// The momentum of a step.
double momentum_of(const NAdamOptions& options, double step) {
  return options.betas[0] * (1 - 0.5 * std::pow(0.96, step * options.momentum_decay));
}

}  // namespace

double NAdam::initial_value(size_t /*group*/, const StateField& field) const { return field.is_number ? 1 : 0; }

void NAdam::update_parameter(const NAdamOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                             const std::array<at::Tensor, 3>& states) {
  const double momentum = momentum_of(options, step);
  const double next_momentum = momentum_of(options, step + 1);
  float& saved_product = *states[2].mutable_data_ptr<float>();  // of the momenta of all steps, as PyTorch rounds it
  saved_product *= static_cast<float>(momentum);
  const double product = saved_product;
  detail::update_elements<2>(
      param, grad, states,
      NAdamFormula{.sign = options.maximize ? -1.0 : 1.0,
                   .penalty = options.decoupled_weight_decay ? 0 : options.weight_decay,
                   .kept = options.decoupled_weight_decay ? 1 - options.lr * options.weight_decay : 1,
                   .gradient_rate = options.lr * (1 - momentum) / (1 - product),
                   .mean_rate = options.lr * next_momentum / (1 - product * next_momentum),
                   .correction = 1 - std::pow(options.betas[1], step),
                   .eps = options.eps,
                   .betas = options.betas});
}

}  // namespace levin::optim
