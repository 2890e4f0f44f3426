#include <levin/core/optim/sparse_adam.h>

#include <levin/core/optim/element_update.h>

#include <cmath>

namespace levin::optim {

void SparseAdamOptions::describe(Schema<SparseAdamOptions>& schema) {
  schema.field("lr", &SparseAdamOptions::lr, "learning rate").at_least(0);
  schema.field("betas", &SparseAdamOptions::betas, "decay rates of the means of the gradient and of its square")
      .require("two numbers from 0 to below 1", [](const std::array<double, 2>& betas) {
        return betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1;
      });
  schema.field("eps", &SparseAdamOptions::eps, "added to the denominator").at_least(0);
  schema.field("maximize", &SparseAdamOptions::maximize, "ascend instead of descend");
}

SparseAdam::SparseAdam(std::vector<at::Tensor> params, const SparseAdamOptions& options)
    : ElementOptimizerOf("sparse_adam", {{std::move(params), options}}, options) {}
SparseAdam::SparseAdam(Groups groups) : ElementOptimizerOf("sparse_adam", std::move(groups)) {}

std::span<const StateField> SparseAdam::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"exp_avg"}, {"exp_avg_sq"}};
  return kFields;
}

namespace {

struct SparseAdamFormula {
  double sign, rate, eps;
  std::array<double, 2> betas;

  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& mean, V& square, V& /*unused*/) const {
    using C = detail::Constant<V>;
    const V gradient = grad * C(sign);
    mean = detail::moved(mean, gradient, C(1 - betas[0]));
    square = detail::moved(square, V(gradient * gradient), C(1 - betas[1]));
    param = param - mean / (detail::square_root(square) + C(eps)) * C(rate);
  }
};

}  // namespace

void SparseAdam::update_parameter(const SparseAdamOptions& options, double step, const at::Tensor& param,
                                  const at::Tensor& grad, const std::array<at::Tensor, 3>& states) {
  const double first = 1 - std::pow(options.betas[0], step);
  const double second = 1 - std::pow(options.betas[1], step);
  detail::update_elements<2>(param, grad, states,
                             SparseAdamFormula{.sign = options.maximize ? -1.0 : 1.0,
                                               .rate = options.lr * std::sqrt(second) / first,
                                               .eps = options.eps,
                                               .betas = options.betas});
}

}  // namespace levin::optim
