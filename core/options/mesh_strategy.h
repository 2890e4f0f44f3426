#pragma once

#include <levin/core/base/config.h>
#include <levin/core/base/registry.h>
#include <levin/core/comm/device_mesh.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace levin {

class Strategy;

/// Dimensions of a mesh, outermost first, each with the strategy that divides along it.
struct MeshDimension {
  std::string_view name;
  std::string_view strategy;
};
inline constexpr std::array<MeshDimension, 5> kMeshDimensions = {{{DeviceMesh::kPipeline, "pipeline"},
                                                                  {DeviceMesh::kReplicate, "ddp"},
                                                                  {DeviceMesh::kShard, "sharded"},
                                                                  {DeviceMesh::kContext, "context"},
                                                                  {DeviceMesh::kTensor, "tensor"}}};

/// Whether an option of strategies is one of all ranks, which stands beside the dimensions: start_method, backend, ...
bool is_rank_option(std::string_view name);

/// Whether an option of a strategy says what the sizes of a mesh say: data_parallel, shard_optimizer, shard_group,
/// tensor_group, tensor_plan, context_group.
bool is_said_by_sizes(std::string_view name);

/// Returns what a dimension may say where it is a mapping: its size and the options of the strategy that divides along
/// it, without those of all ranks.
std::vector<FieldDoc> fields_of(const MeshDimension& dimension, const Registry<Strategy>& strategies);

/// Whether a strategy is written as the sizes of a mesh: a mapping of dimensions, such as `{pipeline: 2, shard: auto}`.
/// `{pipeline: {micro_batches: 4}}`, without a size, is the strategy of that name with its options.
bool is_mesh(const Config& strategy);

/// Throws ConfigError, with the nearest name, for a mapping that is neither a mesh nor a strategy's, but has a key that
/// looks like a dimension: `{pipelin: 2}`.
void refuse_misspelt_mesh(const Config& strategy);

/// Lays a strategy without a name over another one without: dimensions and their options are merged, and a dimension
/// that is a number keeps the options that it had. Both may have options of ranks, or of a pipeline, alone.
Config merge_meshes(const Config& base, const Config& later);

/// Checks all that does not follow from the number of ranks, and returns the mesh as it is written; in a TypedFormScope
/// one form of all that mean the same. Throws ConfigError.
Config resolve_mesh(const Config& mesh);

/// Returns the strategy that divides a model as a mesh says, as a mapping with a name: ddp, sharded, pipeline,
/// context or tensor.
///
/// `mesh`: a mapping of pipeline, replicate, shard, context and tensor, each a size, `auto` (what the other sizes leave
/// of the ranks) or a mapping of `size` and the options of the strategy that divides along it; beside them the options
/// that all ranks share. Throws ConfigError, with the arithmetic, where the sizes do not make `ranks` ranks, and for
/// what does not compose.
Config strategy_of_mesh(const Config& mesh, int64_t ranks);

}  // namespace levin
