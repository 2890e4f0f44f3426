#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace levin {

class Collective;

/// Averages the gradients of parameters that may have sparse ones (COO) over the ranks: gathers the rows that each rank
/// has. Where a rank's gradient of a parameter is dense, all of them become so. Who has none adds nothing; a parameter
/// of which no rank has one keeps none. The ranks give the same parameters, on their device. Collective.
void average_sparse_gradients(const std::vector<at::Tensor>& parameters, Collective& ranks);

}  // namespace levin
