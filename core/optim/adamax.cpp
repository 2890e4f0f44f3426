#include <levin/core/optim/adamax.h>

#include <levin/core/optim/element_update.h>

namespace levin::optim {

void AdamaxOptions::describe(Schema<AdamaxOptions>& schema) {
  schema.field("lr", &AdamaxOptions::lr, "learning rate").at_least(0);
  schema.field("betas", &AdamaxOptions::betas, "decay rates of the means of the gradient and of its square")
      .require("two numbers from 0 to below 1", [](const std::array<double, 2>& betas) {
        return betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
      });
  schema.field("eps", &AdamaxOptions::eps, "added to the denominator").at_least(0);
  schema.field("weight_decay", &AdamaxOptions::weight_decay, "L2 penalty").at_least(0);
  schema.field("maximize", &AdamaxOptions::maximize, "ascend instead of descend");
}

Adamax::Adamax(std::vector<at::Tensor> params, const AdamaxOptions& options)
    : ElementOptimizerOf("adamax", {{std::move(params), options}}, options) {}
Adamax::Adamax(Groups groups) : ElementOptimizerOf("adamax", std::move(groups)) {}

std::span<const StateField> Adamax::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"exp_avg"}, {"exp_inf"}};
  return kFields;
}

namespace {

struct AdamaxFormula {
  double sign, rate, eps, weight_decay;
  std::array<double, 2> betas;

  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& mean, V& largest, V& /*unused*/) const {
    using C = detail::Constant<V>;
    const V gradient = grad * C(sign) + param * C(weight_decay);
    mean = detail::moved(mean, gradient, C(1 - betas[0]));
    largest = detail::larger_of(V(largest * C(betas[1])), V(detail::absolute(gradient) + C(eps)));
    param = param - mean / largest * C(rate);
  }
};

}  // namespace

void Adamax::update_parameter(const AdamaxOptions& options, double step, const at::Tensor& param,
                              const at::Tensor& grad, const std::array<at::Tensor, 3>& states) {
  detail::update_elements<2>(param, grad, states,
                             AdamaxFormula{.sign = options.maximize ? -1.0 : 1.0,
                                           .rate = options.lr / (1 - std::pow(options.betas[0], step)),
                                           .eps = options.eps,
                                           .weight_decay = options.weight_decay,
                                           .betas = options.betas});
}

}  // namespace levin::optim
