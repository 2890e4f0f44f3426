#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace levin {

/// Returns what members are given of tensors that have arrived. Of a leaf that requires a gradient that is a tensor
/// with its memory, as an operation would have given it: a member may change it in place, and the gradient reaches the
/// leaf. Others stay as they are.
std::vector<at::Tensor> changeable(const std::vector<at::Tensor>& leaves);

/// Tells which of some tensors were changed in place since it was made; does not keep their memory.
class InPlaceChanges {
 public:
  explicit InPlaceChanges(const std::vector<at::Tensor>& tensors);
  /// One for each tensor.
  std::vector<bool> read() const;

 private:
  struct Version {
    c10::VariableVersion counter;
    uint32_t before;
  };
  std::vector<std::optional<Version>> versions_;  ///< nothing where changes are not counted
};

}  // namespace levin
