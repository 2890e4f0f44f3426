#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace levin {

/// The gradients of parameters, those that share device and type together, as the foreach kernels take them.
/// Parameters without a gradient are left out; no group is empty.
std::vector<std::vector<at::Tensor>> gradient_groups(const std::vector<at::Tensor>& parameters);

}  // namespace levin
