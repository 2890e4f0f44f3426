#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace levin {

/// Makes a tensor of the shape and type of `like` without memory; reading its values throws an error with `message`.
at::Tensor absent_tensor(const at::Tensor& like, const at::Device& device, const std::string& message);
/// Whether a parameter is such a tensor, as strategies that divide a model leave it where nobody makes it whole.
bool is_absent(const at::Tensor& parameter);

/// Gives back a tensor's memory; it keeps its identity, and so do its views.
void free_storage(const at::Tensor& tensor);

}  // namespace levin
