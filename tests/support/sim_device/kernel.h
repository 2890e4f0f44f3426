#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace levin::testing::sim {

using Tensors = std::vector<at::Tensor>;

/// Runs a function of CPU tensors as one kernel, which a recording does again. The function gets what it reads, then
/// what it writes in place, and returns what it makes. Undefined tensors stay so.
Tensors run_kernel(const std::string& name, const Tensors& read, const Tensors& written,
                   const std::function<Tensors(const Tensors&)>& function);

}  // namespace levin::testing::sim
