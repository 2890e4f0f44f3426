#include <levin/core/base/gradient_groups.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace levin {

at::Tensor gradient_values(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined() || !gradient.is_sparse()) return gradient;
  const at::NoGradGuard no_grad;
  if (!gradient.is_coalesced()) parameter.mutable_grad() = gradient.coalesce();
  return parameter.grad()._values();
}

at::Tensor dense_gradient(const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  return gradient.defined() && gradient.is_sparse() ? gradient.to_dense() : gradient;
}

std::vector<std::vector<at::Tensor>> gradient_groups(const std::vector<at::Tensor>& parameters) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& parameter : parameters) {
    const at::Tensor gradient = gradient_values(parameter);
    if (!gradient.defined()) continue;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& other) {
      return other.front().device() == gradient.device() && other.front().scalar_type() == gradient.scalar_type();
    });
    if (group == groups.end()) group = groups.emplace(groups.end());
    group->push_back(gradient);
  }
  return groups;
}

}  // namespace levin
