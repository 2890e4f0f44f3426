#include <levin/core/base/gradient_groups.h>

#include <algorithm>

namespace levin {

std::vector<std::vector<at::Tensor>> gradient_groups(const std::vector<at::Tensor>& parameters) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
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
