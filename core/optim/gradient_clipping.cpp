#include <levin/core/optim/gradient_clipping.h>

#include <levin/core/base/error.h>
#include <levin/core/base/gradient_groups.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <numeric>
#include <utility>

namespace levin::optim {
namespace {

constexpr double kSmallest = 1e-6;        // as torch.nn.utils.clip_grad_norm_: no division by zero
constexpr double kSmallestWeight = 1e-3;  // of a row's norm, so that weights that start at zero can grow

void divide(const std::vector<std::vector<at::Tensor>>& groups, const at::Tensor& divisor) {
  for (const auto& group : groups) at::_foreach_div_(group, divisor.to(group.front().options()));
}

/// See gradient_norm.
at::Tensor norm_of(const std::vector<std::vector<at::Tensor>>& groups,
                   const std::function<at::Tensor(at::Tensor)>& reduce_norm) {
  if (groups.empty()) return {};
  const at::Tensor& first = groups.front().front();
  const auto type = first.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> norms;
  for (const auto& group : groups)
    for (const auto& norm : at::_foreach_norm(group, 2, type)) norms.push_back(norm.to(first.device()));
  at::Tensor total = at::linalg_vector_norm(at::stack(norms), 2);
  return reduce_norm ? reduce_norm(std::move(total)) : total;
}

}  // namespace

at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters,
                         const std::function<at::Tensor(at::Tensor)>& reduce_norm) {
  const at::NoGradGuard no_grad;
  return norm_of(gradient_groups(parameters), reduce_norm);
}

at::Tensor clip_divisor(const at::Tensor& norm, double max_norm) {
  const at::NoGradGuard no_grad;
  return ((norm + kSmallest) / max_norm).clamp_min_(1.0);
}

at::Tensor clip_by_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                        const std::function<at::Tensor(at::Tensor)>& reduce_norm) {
  const at::NoGradGuard no_grad;
  const auto groups = gradient_groups(parameters);
  at::Tensor norm = norm_of(groups, reduce_norm);
  if (!norm.defined()) return norm;
  // The division is always done, also by 1, so that nothing waits for the norm.
  divide(groups, clip_divisor(norm, max_norm));
  return norm;
}

void divide_gradients(const std::vector<at::Tensor>& parameters, const at::Tensor& divisor) {
  const at::NoGradGuard no_grad;
  divide(gradient_groups(parameters), divisor);
}

void clip_by_value(const std::vector<at::Tensor>& parameters, double limit) {
  const at::NoGradGuard no_grad;
  for (auto& group : gradient_groups(parameters)) {
    if (group.front().is_cpu()) {
      // The foreach kernels of the CPU are loops, and two of them would read everything twice.
      for (auto& gradient : group) gradient.clamp_(-limit, limit);
    } else {
      at::_foreach_clamp_min_(group, -limit);
      at::_foreach_clamp_max_(group, limit);
    }
  }
}

at::Tensor adaptive_divisor(const at::Tensor& weight_norms, const at::Tensor& gradient_norms, double ratio) {
  const at::NoGradGuard no_grad;
  const at::Tensor most = weight_norms.clamp_min(kSmallestWeight).mul_(ratio);
  return (gradient_norms.clamp_min(kSmallest) / most).clamp_min_(1.0);
}

void clip_adaptively(const std::vector<at::Tensor>& parameters, double ratio) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    at::Tensor gradient = gradient_values(parameter);
    if (!gradient.defined()) continue;
    at::Tensor weights = parameter;
    if (const at::Tensor& sparse = parameter.grad(); sparse.is_sparse()) {
      if (sparse.sparse_dim() != 1)
        throw Error("optim", fmt::format("adaptive clipping takes sparse gradients of whole rows; got one of {} sparse "
                                         "dimensions, of shape {}",
                                         sparse.sparse_dim(), c10::str(parameter.sizes())));
      weights = parameter.index_select(0, sparse._indices()[0]);
    }
    const auto row_norm = [](const at::Tensor& tensor) {
      if (tensor.dim() <= 1) return at::linalg_vector_norm(tensor, 2);
      std::vector<int64_t> within(tensor.dim() - 1);
      std::iota(within.begin(), within.end(), 1);
      return at::linalg_vector_norm(tensor, 2, within, /*keepdim=*/true);
    };
    gradient.div_(adaptive_divisor(row_norm(weights), row_norm(gradient), ratio));
  }
}

}  // namespace levin::optim
