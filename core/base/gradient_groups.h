#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace levin {

/// Returns the elements of a parameter's gradient as a dense tensor that shares its memory; undefined where there is no
/// gradient. Those of a sparse gradient (COO) are the rows that it has, after repeated ones have been added up.
at::Tensor gradient_values(const at::Tensor& parameter);

/// Returns a gradient as a dense tensor: itself where it is one.
at::Tensor dense_gradient(const at::Tensor& gradient);

/// Groups the gradients of parameters by device and type, as the foreach kernels need them: what `gradient_values`
/// returns. Parameters without a gradient are left out; no group is empty.
std::vector<std::vector<at::Tensor>> gradient_groups(const std::vector<at::Tensor>& parameters);

}  // namespace levin
