#pragma once

#include <levin/core/interfaces/step_output.h>

#include <cstdint>
#include <vector>

namespace levin {

/// Makes one output out of those of a batch's parts, all on one device: the loss, and named outputs that are scalars,
/// as means weighted by part size, other named outputs (and losses that are not scalars) concatenated along the first
/// dimension. A part that lacks one is left out of it. Differentiable. Throws levin::Error when rows of parts differ in
/// shape.
StepOutput gather_outputs(const std::vector<StepOutput>& parts, const std::vector<int64_t>& sizes);

}  // namespace levin
