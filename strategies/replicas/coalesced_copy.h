#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace levin {

/// Copies tensors of one device to tensors of the same sizes and types on another, in few large transfers instead of
/// one for each. The host does not wait.
void copy_coalesced(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to);

}  // namespace levin
