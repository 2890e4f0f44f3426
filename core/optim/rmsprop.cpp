#include <levin/core/optim/rmsprop.h>

#include <levin/core/optim/element_update.h>

namespace levin::optim {

void RMSpropOptions::describe(Schema<RMSpropOptions>& schema) {
  schema.field("lr", &RMSpropOptions::lr, "learning rate").at_least(0);
  schema.field("alpha", &RMSpropOptions::alpha, "decay rate of the mean of the squared gradient").at_least(0).below(1);
  schema.field("eps", &RMSpropOptions::eps, "added to the denominator").at_least(0);
  schema.field("weight_decay", &RMSpropOptions::weight_decay, "L2 penalty").at_least(0);
  schema.field("momentum", &RMSpropOptions::momentum, "momentum factor").at_least(0);
  schema.field("centered", &RMSpropOptions::centered, "divide by an estimate of the gradient's standard deviation");
  schema.field("maximize", &RMSpropOptions::maximize, "ascend instead of descend");
}

RMSprop::RMSprop(std::vector<at::Tensor> params, const RMSpropOptions& options)
    : ElementOptimizerOf("rmsprop", {{std::move(params), options}}, options) {}
RMSprop::RMSprop(Groups groups) : ElementOptimizerOf("rmsprop", std::move(groups)) {}

std::span<const StateField> RMSprop::state_fields(size_t group) const {
  static constexpr StateField kFields[] = {{"square_avg"}, {"momentum_buffer"}, {"grad_avg"}};
  static constexpr StateField kCentered[] = {{"square_avg"}, {"grad_avg"}};
  const RMSpropOptions& options = group_options(group);
  if (options.centered && options.momentum == 0) return kCentered;
  return std::span(kFields).first(1 + (options.momentum > 0 ? 1 : 0) + (options.centered ? 1 : 0));
}

namespace {

template <bool kCentered, bool kMomentum>
struct RMSpropFormula {
  double sign, lr, alpha, eps, weight_decay, momentum;

  /// `first`: the mean square; then the momentum and the mean, of which there may be none, one or both.
  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& first, V& second, V& third) const {
    using C = detail::Constant<V>;
    const V gradient = grad * C(sign) + param * C(weight_decay);
    first = first * C(alpha) + gradient * gradient * C(1 - alpha);
    V variance = first;
    if constexpr (kCentered) {
      V& mean = kMomentum ? third : second;
      mean = detail::moved(mean, gradient, C(1 - alpha));
      variance = first - mean * mean;
    }
    V change = gradient / (detail::square_root(variance) + C(eps));
    if constexpr (kMomentum) {
      second = second * C(momentum) + change;
      change = second;
    }
    param = param - change * C(lr);
  }
};

template <bool kCentered, bool kMomentum>
void run(const RMSpropOptions& options, const at::Tensor& param, const at::Tensor& grad,
         const std::array<at::Tensor, 3>& states) {
  detail::update_elements<1 + kCentered + kMomentum>(
      param, grad, states,
      RMSpropFormula<kCentered, kMomentum>{.sign = options.maximize ? -1.0 : 1.0,
                                           .lr = options.lr,
                                           .alpha = options.alpha,
                                           .eps = options.eps,
                                           .weight_decay = options.weight_decay,
                                           .momentum = options.momentum});
}

}  // namespace

void RMSprop::update_parameter(const RMSpropOptions& options, double /*step*/, const at::Tensor& param,
                               const at::Tensor& grad, const std::array<at::Tensor, 3>& states) {
  if (options.centered)
    options.momentum > 0 ? run<true, true>(options, param, grad, states)
                         : run<true, false>(options, param, grad, states);
  else
    options.momentum > 0 ? run<false, true>(options, param, grad, states)
                         : run<false, false>(options, param, grad, states);
}

}  // namespace levin::optim
