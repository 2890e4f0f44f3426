#pragma once

#include <levin/core/interfaces/step_output.h>

#include <cstdint>
#include <vector>

namespace levin {

/// Returns what the parts of a batch count in a mean: the weights of their losses, or their sizes where not given.
std::vector<LossWeight> part_weights(const std::vector<StepOutput>& parts, const std::vector<int64_t>& sizes);

/// Makes one output out of those of a batch's parts, all on one device: the loss as a mean by the parts' weights, which
/// are their sizes where not given, named outputs that are scalars as means by part size, other named outputs (and
/// losses that are not scalars) concatenated along the first dimension. A part that lacks one is left out of it.
/// Differentiable. Throws levin::Error when rows of parts differ in shape.
StepOutput gather_outputs(const std::vector<StepOutput>& parts, const std::vector<int64_t>& sizes);

}  // namespace levin
