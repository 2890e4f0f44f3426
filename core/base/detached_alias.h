#pragma once

#include <ATen/core/Tensor.h>

namespace levin {

/// Returns a tensor with the memory and shape of another one, without its graph, that is no view of it: its changes in
/// place are counted by themselves, so that autograd does not take them for changes of the other one.
inline at::Tensor detached_alias(const at::Tensor& tensor) {
  at::Tensor same(tensor.variable_data());
  same.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
  return same;
}

}  // namespace levin
