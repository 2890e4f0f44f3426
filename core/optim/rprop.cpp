#include <levin/core/optim/rprop.h>

#include <levin/core/optim/element_update.h>

#include <string_view>

namespace levin::optim {

void RpropOptions::describe(Schema<RpropOptions>& schema) {
  schema.field("lr", &RpropOptions::lr, "learning rate").at_least(0);
  schema.field("etas", &RpropOptions::etas, "factors of the step size after a change of sign and without")
      .require("a number from 0 to below 1 and one above 1",
               [](const std::array<double, 2>& etas) { return etas[0] > 0 && etas[0] < 1 && etas[1] > 1; });
  schema.field("step_sizes", &RpropOptions::step_sizes, "smallest and largest step size")
      .require("two rising numbers of at least 0",
               [](const std::array<double, 2>& sizes) { return sizes[0] >= 0 && sizes[0] <= sizes[1]; });
  schema.field("maximize", &RpropOptions::maximize, "ascend instead of descend");
}

Rprop::Rprop(std::vector<at::Tensor> params, const RpropOptions& options)
    : ElementOptimizerOf("rprop", {{std::move(params), options}}, options) {}
Rprop::Rprop(Groups groups) : ElementOptimizerOf("rprop", std::move(groups)) {}

std::span<const StateField> Rprop::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"prev"}, {"step_size"}};
  return kFields;
}

namespace {

struct RpropFormula {
  double sign;
  std::array<double, 2> etas, step_sizes;

  template <class V>
  LEVIN_INLINE void operator()(V& param, const V& grad, V& previous, V& step_size, V& /*unused*/) const {
    using C = detail::Constant<V>;
    const V gradient = grad * C(sign);
    const V agreement = gradient * previous;
    step_size = detail::clamped(V(step_size * detail::by_sign(agreement, C(etas[1]), C(etas[0]), C(1))),
                                C(step_sizes[0]), C(step_sizes[1]));
    previous = detail::zero_where_negative(agreement, gradient);
    param = param - step_size * detail::by_sign(previous, C(1), C(-1), C(0));
  }
};

}  // namespace

double Rprop::initial_value(size_t group, const StateField& field) const {
  return std::string_view(field.name) == "step_size" ? group_options(group).lr : 0;
}

void Rprop::update_parameter(const RpropOptions& options, double step, const at::Tensor& param, const at::Tensor& grad,
                             const std::array<at::Tensor, 3>& states) {
  detail::update_elements<2>(
      param, grad, states,
      RpropFormula{.sign = options.maximize ? -1.0 : 1.0, .etas = options.etas, .step_sizes = options.step_sizes});
}

}  // namespace levin::optim
