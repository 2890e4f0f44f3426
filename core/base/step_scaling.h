#pragma once

#include <ATen/core/Tensor.h>

namespace levin {

/// What a loss-scaling precision hands to an optimizer step; both undefined for full precision.
struct StepScaling {
  at::Tensor grad_scale = {};  ///< scalar on the device: gradients are divided by it inside the fused step
  /// Scalar on the device: the step is skipped, without a host synchronisation, where it is not 0
  at::Tensor found_inf = {};
};

}  // namespace levin
