#pragma once

#include <levin/core/optim/parameter_names.h>
#include <levin/strategies/ranks/parameter_part.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace levin {

class Collective;

/// Combines norms of each rank's parts of tensors into those of the whole ones: see DividedModel::reduce_norm.
/// `device`: where the ranks' collectives run.
at::Tensor reduce_norms(const at::Tensor& norms, double order, Collective& ranks, const at::Device& device);

/// Clips gradients of local shards by the norms of the whole parameters' rows: see optim::clip_adaptively. A collective
/// of `ranks`, which hold the parts of each parameter and have gradients of the same ones.
void clip_parts_adaptively(const std::vector<at::Tensor>& local_shards, const optim::ParameterNames& names,
                           const FindPart& find_part, double ratio, Collective& ranks, const at::Device& device);

}  // namespace levin
