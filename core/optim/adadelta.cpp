#include <levin/core/optim/adadelta.h>

#include <levin/core/optim/element_update.h>

namespace levin::optim {

void AdadeltaOptions::describe(Schema<AdadeltaOptions>& schema) {
  schema.field("lr", &AdadeltaOptions::lr, "learning rate").at_least(0);
  schema.field("rho", &AdadeltaOptions::rho, "decay rate of both means").at_least(0).below(1);
  schema.field("eps", &AdadeltaOptions::eps, "added to the denominator").at_least(0);
  schema.field("weight_decay", &AdadeltaOptions::weight_decay, "L2 penalty").at_least(0);
  schema.field("maximize", &AdadeltaOptions::maximize, "ascend instead of descend");
}

Adadelta::Adadelta(std::vector<at::Tensor> params, const AdadeltaOptions& options)
    : ElementOptimizerOf("adadelta", {{std::move(params), options}}, options) {}
Adadelta::Adadelta(Groups groups) : ElementOptimizerOf("adadelta", std::move(groups)) {}

std::span<const StateField> Adadelta::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"square_avg"}, {"acc_delta"}};
  return kFields;
}

namespace {

struct AdadeltaFormula {
  double sign, lr, rho, eps, weight_decay;

  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& square, V& changes, V& /*unused*/) const {
    using C = detail::Constant<V>;
    const V gradient = grad * C(sign) + param * C(weight_decay);
    square = square * C(rho) + gradient * gradient * C(1 - rho);
    const V change = detail::square_root(V((changes + C(eps)) / (square + C(eps)))) * gradient;
    changes = changes * C(rho) + change * change * C(1 - rho);
    param = param - change * C(lr);
  }
};

}  // namespace

void Adadelta::update_parameter(const AdadeltaOptions& options, double /*step*/, const at::Tensor& param,
                                const at::Tensor& grad, const std::array<at::Tensor, 3>& states) {
  detail::update_elements<2>(param, grad, states,
                             AdadeltaFormula{.sign = options.maximize ? -1.0 : 1.0,
                                             .lr = options.lr,
                                             .rho = options.rho,
                                             .eps = options.eps,
                                             .weight_decay = options.weight_decay});
}

}  // namespace levin::optim
