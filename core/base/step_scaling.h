#pragma once

#include <ATen/core/Tensor.h>

namespace levin {

/// Instructions to an optimizer step on gradients that are to be clipped or may have overflowed.
struct StepScaling {
  at::Tensor grad_scale = {};  ///< scalar on the device that the step divides gradients by; undefined: none
  /// Scalar on the device: the step is skipped, without a host synchronisation, when it is not 0. Undefined: never.
  at::Tensor found_inf = {};
};

}  // namespace levin
