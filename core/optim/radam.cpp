#include <levin/core/optim/radam.h>

#include <levin/core/optim/element_update.h>

namespace levin::optim {

void RAdamOptions::describe(Schema<RAdamOptions>& schema) {
  schema.field("lr", &RAdamOptions::lr, "learning rate").at_least(0);
  schema.field("betas", &RAdamOptions::betas, "decay rates of the means of the gradient and of its square")
      .require("two numbers from 0 to below 1", [](const std::array<double, 2>& betas) {
        return betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
      });
  schema.field("eps", &RAdamOptions::eps, "added to the denominator").at_least(0);
  schema.field("weight_decay", &RAdamOptions::weight_decay, "L2 penalty").at_least(0);
  schema.field("decoupled_weight_decay", &RAdamOptions::decoupled_weight_decay,
               "decay the weights themselves, as AdamW does");
  schema.field("maximize", &RAdamOptions::maximize, "ascend instead of descend");
}

RAdam::RAdam(std::vector<at::Tensor> params, const RAdamOptions& options)
    : ElementOptimizerOf("radam", {{std::move(params), options}}, options) {}
RAdam::RAdam(Groups groups) : ElementOptimizerOf("radam", std::move(groups)) {}

std::span<const StateField> RAdam::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"exp_avg"}, {"exp_avg_sq"}};
  return kFields;
}

namespace {

template <bool kAdaptive>
struct RAdamFormula {
  double sign, penalty, kept, rate, root_correction, eps;
  std::array<double, 2> betas;

  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& mean, V& square, V& /*unused*/) const {
    using C = detail::Constant<V>;
    const V gradient = grad * C(sign) + param * C(penalty);
    mean = detail::moved(mean, gradient, C(1 - betas[0]));
    square = square * C(betas[1]) + gradient * gradient * C(1 - betas[1]);
    if constexpr (kAdaptive)
      param = param * C(kept) - mean * C(rate) * C(root_correction) / (detail::square_root(square) + C(eps));
    else
      param = param * C(kept) - mean * C(rate);
  }
};

}  // namespace

void RAdam::update_parameter(const RAdamOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                             const std::array<at::Tensor, 3>& states) {
  const double beta2_power = std::pow(options.betas[1], step);
  const double longest = 2 / (1 - options.betas[1]) - 1;
  const double length = longest - 2 * step * beta2_power / (1 - beta2_power);
  const bool is_adaptive = length > 5;
  const double rectification =
      is_adaptive ? std::sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) : 1;
  const double rate = options.lr / (1 - std::pow(options.betas[0], step)) * rectification;
  const auto run = [&](auto formula) {
    formula.sign = options.maximize ? -1.0 : 1.0;
    formula.penalty = options.decoupled_weight_decay ? 0 : options.weight_decay;
    formula.kept = options.decoupled_weight_decay ? 1 - options.lr * options.weight_decay : 1;
    formula.rate = rate;
    formula.root_correction = std::sqrt(1 - beta2_power);
    formula.eps = options.eps;
    formula.betas = options.betas;
    detail::update_elements<2>(param, grad, states, formula);
  };
  is_adaptive ? run(RAdamFormula<true>{}) : run(RAdamFormula<false>{});
}

}  // namespace levin::optim
