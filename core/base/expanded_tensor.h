#pragma once

#include <ATen/core/Tensor.h>

namespace levin {

/// Returns the elements of a tensor without the repetitions of an expanded one, which cannot be written to.
at::Tensor without_repetitions(at::Tensor tensor);

/// Copies the elements of a tensor of the same sizes to another, which may be an expanded one: then repeated elements
/// are the first ones of `from`.
void copy_elements(const at::Tensor& from, const at::Tensor& to);

}  // namespace levin
