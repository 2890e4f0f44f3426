#pragma once

#include <ATen/core/Tensor.h>

namespace levin::metrics {

/// Reduction of a metric's state tensor over ranks. kMoments: see moments.h.
enum class Reduction { kSum, kMax, kMin, kConcatenate, kMoments };

namespace detail {

/// Combines a state with another one of the same shape, on the same device, in place. For all reductions but
/// kConcatenate.
void combine_states(Reduction reduction, at::Tensor& into, const at::Tensor& other);

}  // namespace detail
}  // namespace levin::metrics
