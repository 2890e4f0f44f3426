#include <levin/core/optim/lion.h>

#include <levin/core/optim/element_update.h>

namespace levin::optim {

void LionOptions::describe(Schema<LionOptions>& schema) {
  schema.field("lr", &LionOptions::lr, "learning rate").at_least(0);
  schema.field("betas", &LionOptions::betas, "decay rates of the mean in the step, and afterwards")
      .require("two numbers from 0 to below 1", [](const std::array<double, 2>& betas) {
        return betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
      });
  schema.field("weight_decay", &LionOptions::weight_decay, "decoupled weight decay").at_least(0);
  schema.field("maximize", &LionOptions::maximize, "ascend instead of descend");
}

Lion::Lion(std::vector<at::Tensor> params, const LionOptions& options)
    : ElementOptimizerOf("lion", {{std::move(params), options}}, options) {}
Lion::Lion(Groups groups) : ElementOptimizerOf("lion", std::move(groups)) {}

std::span<const StateField> Lion::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"exp_avg"}};
  return kFields;
}

namespace {

struct LionFormula {
  double sign, lr, kept;
  std::array<double, 2> betas;

  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& mean, V& /*unused*/, V& /*unused*/) const {
    using C = detail::Constant<V>;
    const V gradient = grad * C(sign);
    const V direction = mean * C(betas[0]) + gradient * C(1 - betas[0]);
    param = param * C(kept) - detail::by_sign(direction, C(1), C(-1), C(0)) * C(lr);
    mean = mean * C(betas[1]) + gradient * C(1 - betas[1]);
  }
};

}  // namespace

void Lion::update_parameter(const LionOptions& options, double /*step*/, const at::Tensor& param,
                            const at::Tensor& grad, const std::array<at::Tensor, 3>& states) {
  detail::update_elements<1>(param, grad, states,
                             LionFormula{.sign = options.maximize ? -1.0 : 1.0,
                                         .lr = options.lr,
                                         .kept = 1 - options.lr * options.weight_decay,
                                         .betas = options.betas});
}

}  // namespace levin::optim
