#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace levin {

/// Groups the gradients of parameters by device and type, as the foreach kernels need them. Parameters without a
/// gradient are left out; no group is empty.
std::vector<std::vector<at::Tensor>> gradient_groups(const std::vector<at::Tensor>& parameters);

}  // namespace levin
