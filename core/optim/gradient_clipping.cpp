#include <levin/core/optim/gradient_clipping.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <map>

namespace levin::optim {
namespace {

/// Gradients by device and type, which is what the foreach kernels take.
std::vector<std::vector<at::Tensor>> grouped_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    auto group = groups.begin();
    while (group != groups.end() &&
           (group->front().device() != gradient.device() || group->front().scalar_type() != gradient.scalar_type()))
      ++group;
    if (group == groups.end()) group = groups.emplace(groups.end());
    group->push_back(gradient);
  }
  return groups;
}

}  // namespace

at::Tensor clip_by_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                        const std::function<at::Tensor(at::Tensor)>& reduce_norm) {
  const at::NoGradGuard no_grad;
  auto groups = grouped_gradients(parameters);
  if (groups.empty()) return {};
  std::vector<at::Tensor> norms;
  for (const auto& group : groups)
    for (const auto& norm : at::_foreach_norm(group, 2)) norms.push_back(norm.to(groups.front().front().device()));
  at::Tensor total = at::linalg_vector_norm(at::stack(norms), 2);
  if (reduce_norm) total = reduce_norm(total);
  // As torch.nn.utils.clip_grad_norm_: the multiplication by at most 1 is always done, so that nothing waits for the
  // norm.
  const at::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (auto& group : groups) at::_foreach_mul_(group, factor.to(group.front().options()));
  return total;
}

void clip_by_value(const std::vector<at::Tensor>& parameters, double limit) {
  const at::NoGradGuard no_grad;
  for (auto& group : grouped_gradients(parameters)) {
    at::_foreach_clamp_min_(group, -limit);
    at::_foreach_clamp_max_(group, limit);
  }
}

}  // namespace levin::optim
