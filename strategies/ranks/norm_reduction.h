#pragma once

#include <ATen/core/Tensor.h>

namespace levin {

class Collective;

/// Combines norms of each rank's parts of tensors into those of the whole ones: see DividedModel::reduce_norm.
/// `device`: where the ranks' collectives run.
at::Tensor reduce_norms(const at::Tensor& norms, double order, Collective& ranks, const at::Device& device);

}  // namespace levin
