#pragma once

#include <ATen/core/Tensor.h>

namespace levin {

/// Returns the number in a tensor of one element on the CPU. No operator runs, which a step that is recorded could not
/// repeat.
double read_host_scalar(const at::Tensor& value);

}  // namespace levin
