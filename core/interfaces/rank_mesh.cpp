#include <levin/core/interfaces/rank_mesh.h>

#include <levin/core/base/error.h>
#include <levin/core/comm/collective.h>
#include <levin/core/comm/device_mesh.h>
#include <levin/core/interfaces/cluster_environment.h>
#include <levin/core/interfaces/ranks.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace levin {
namespace {

void require_dimension(std::string_view name) {
  const std::vector<std::string> names{std::string(DeviceMesh::kPipeline), std::string(DeviceMesh::kReplicate),
                                       std::string(DeviceMesh::kShard), std::string(DeviceMesh::kContext),
                                       std::string(DeviceMesh::kTensor)};
  if (std::ranges::find(names, name) == names.end())
    throw Error("mesh", fmt::format("there is no dimension '{}'{}", name, valid_names_hint(name, names)));
}

}  // namespace

int64_t RankMesh::size(std::string_view dimension) const {
  require_dimension(dimension);
  return ranks_.mesh().size(dimension);
}

int64_t RankMesh::coordinate(std::string_view dimension) const {
  require_dimension(dimension);
  return ranks_.mesh().coordinate(ranks_.environment().rank(), dimension);
}

Collective& RankMesh::group(std::string_view dimension) const {
  require_dimension(dimension);
  return ranks_.group(dimension);
}

}  // namespace levin
