#pragma once

#include <ATen/core/Tensor.h>

namespace levin {

/// Loss scaling of an optimizer step; both tensors are undefined when the loss is not scaled.
struct StepScaling {
  at::Tensor grad_scale = {};  ///< scalar on the device: gradients are divided by it inside the fused step
  /// Scalar on the device: the step is skipped, without a host synchronisation, where it is not 0
  at::Tensor found_inf = {};
};

}  // namespace levin
