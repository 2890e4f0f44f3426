#pragma once

#include <ATen/core/Tensor.h>

namespace levin {

class Collective;

/// Gives each rank of a group its part: of `parts` [ranks, ...], which is contiguous, the r-th goes to rank r. Returns
/// [ranks, ...], what each rank had for this one. A rank sends and receives the bytes of `parts`, without its own part.
/// Without a gradient. Collective.
at::Tensor all_to_all(Collective& group, const at::Tensor& parts);

}  // namespace levin
