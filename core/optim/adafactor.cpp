#include <levin/core/optim/adafactor.h>

#include <levin/core/optim/element_update.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

namespace levin::optim {

void AdafactorOptions::describe(Schema<AdafactorOptions>& schema) {
  schema.field("lr", &AdafactorOptions::lr, "largest step relative to the weights' size; step t: min(lr, 1/√t)")
      .at_least(0);
  schema.field("beta2_decay", &AdafactorOptions::beta2_decay, "power of the step in the decay of the mean squares")
      .require("at most 0", [](double power) { return power <= 0; });
  schema
      .field("eps1", &AdafactorOptions::eps1,
             "the least divisor of a gradient; null: the precision of the weights' type")
      .at_least(0);
  schema.field("eps2", &AdafactorOptions::eps2, "the least size of a parameter's weights, for those near 0")
      .at_least(0);
  schema.field("d", &AdafactorOptions::d, "largest root mean square of an update").at_least(1);
  schema.field("weight_decay", &AdafactorOptions::weight_decay, "decoupled weight decay").at_least(0);
  schema.field("maximize", &AdafactorOptions::maximize, "ascend instead of descend");
}

Adafactor::Adafactor(std::vector<at::Tensor> params, const AdafactorOptions& options)
    : ElementOptimizerOf("adafactor", {{std::move(params), options}}, options) {}
Adafactor::Adafactor(Groups groups) : ElementOptimizerOf("adafactor", std::move(groups)) {}

std::span<const StateField> Adafactor::state_fields(size_t /*group*/) const {
  static constexpr StateField kFields[] = {{"row_var"}, {"col_var"}, {"variance"}};
  return kFields;
}

std::optional<std::vector<int64_t>> Adafactor::state_sizes(size_t /*group*/, const StateField& field,
                                                           const at::Tensor& param) const {
  const std::string_view name = field.name;
  if ((name == "variance") == (param.dim() > 1)) return std::nullopt;
  std::vector<int64_t> sizes = param.sizes().vec();
  if (name != "variance") sizes[sizes.size() - (name == "row_var" ? 1 : 2)] = 1;
  return sizes;
}

namespace {

double precision_of(c10::ScalarType type) {
  if (type == at::kDouble) return std::numeric_limits<double>::epsilon();
  if (type == at::kHalf) return 0x1p-10;
  if (type == at::kBFloat16) return 0x1p-7;
  return std::numeric_limits<float>::epsilon();
}

/// Mean of the squares along a dimension, which stays.
at::Tensor mean_square(const at::Tensor& values, int64_t dim) {
  // LibTorch's norm of columns takes ten times as long; squares of 16 bits would overflow.
  if (dim != -1 && values.is_cpu() && (values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble))
    return values.square().mean(dim, /*keepdim=*/true);
  return at::linalg_vector_norm(values, 2, dim, /*keepdim=*/true).square_().div_(values.size(dim));
}

/// The gradient over the root of its mean square.
struct Direction {
  double least;

  template <class V>
  LEVIN_INLINE void operator()(V& square, const V& grad, V& /*unused*/, V& /*unused*/, V& /*unused*/) const {
    using C = detail::Constant<V>;
    square = grad / detail::square_root(detail::clamped(square, C(least), C(std::numeric_limits<double>::infinity())));
  }
};

}  // namespace

void Adafactor::update_parameter(const AdafactorOptions& options, double step, const at::Tensor& param,
                                 const at::Tensor& grad, const std::array<at::Tensor, 3>& states) {
  if (param.numel() == 0) return;
  const double newest = std::pow(step, options.beta2_decay);
  const double rate = std::min(options.lr, 1 / std::sqrt(step));
  const double eps1 = options.eps1.value_or(precision_of(param.scalar_type()));
  const double root = std::sqrt(static_cast<double>(param.numel()));
  const at::Tensor size = at::linalg_vector_norm(param).div_(root).clamp_min_(options.eps2);
  if (options.weight_decay != 0) param.mul_(1 - options.lr * options.weight_decay);

  at::Tensor update;
  if (param.dim() > 1) {
    const at::Tensor& rows = states[0];
    const at::Tensor& columns = states[1];
    rows.lerp_(mean_square(grad, -1), newest);
    columns.lerp_(mean_square(grad, -2), newest);
    update = at::matmul(rows / rows.mean(-2, /*keepdim=*/true).clamp_min_(eps1), columns);
  } else {
    states[2].lerp_(grad * grad, newest);
    update = states[2].clone();
  }
  if (update.strides() == grad.strides())
    detail::update_elements<0>(update, grad, {}, Direction{.least = eps1 * eps1});
  else
    update.clamp_min_(eps1 * eps1).rsqrt_().mul_(grad);
  const at::Tensor excess = at::linalg_vector_norm(update).div_(root * options.d).clamp_min_(1);
  // On the device: nobody waits for the sizes.
  param.addcmul_(update, size / excess, options.maximize ? rate : -rate);
}

}  // namespace levin::optim
