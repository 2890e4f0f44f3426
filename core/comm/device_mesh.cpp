#include <levin/core/comm/device_mesh.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace levin {

DeviceMesh::DeviceMesh(std::vector<Dimension> dimensions, int64_t ranks)
    : dimensions_(std::move(dimensions)), ranks_(ranks) {
  int64_t product = 1;
  for (const auto& [name, size] : dimensions_) {
    if (std::ranges::count(dimensions_, name, &Dimension::name) > 1)
      throw ConfigError(fmt::format("the mesh has the dimension '{}' twice; valid: each once", name));
    if (size < 1) throw ConfigError(fmt::format("the mesh's dimension '{}' must be at least 1; got {}", name, size));
    // Beyond the number of ranks the product no longer matters, and might overflow.
    product = product > ranks ? product : product * std::min(size, ranks + 1);
  }
  if (product != ranks)
    throw ConfigError(fmt::format("the mesh does not have as many places as there are ranks: {} ranks = {}?", ranks,
                                  dimensions_.empty() ? "no dimension" : text()));
}

std::string DeviceMesh::text() const {
  std::string text;
  for (const auto& [name, size] : dimensions_) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, size);
  return text;
}

int64_t DeviceMesh::size(std::string_view name) const {
  const auto found = std::ranges::find(dimensions_, name, &Dimension::name);
  return found == dimensions_.end() ? 1 : found->size;
}

int64_t DeviceMesh::coordinate(int64_t rank, std::string_view name) const {
  for (auto dimension = dimensions_.rbegin(); dimension != dimensions_.rend(); ++dimension) {
    if (dimension->name == name) return rank % dimension->size;
    rank /= dimension->size;
  }
  return 0;
}

DeviceMesh::Groups DeviceMesh::groups(const std::vector<std::string_view>& names) const {
  std::map<std::vector<int64_t>, size_t> group_of;  // by the coordinates along the other dimensions
  Groups groups;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    std::vector<int64_t> others;
    for (const auto& [name, size] : dimensions_)
      if (std::ranges::find(names, name) == names.end()) others.push_back(coordinate(rank, name));
    const auto [place, is_new] = group_of.try_emplace(std::move(others), groups.size());
    if (is_new) groups.emplace_back();
    groups[place->second].push_back(rank);
  }
  return groups;
}

}  // namespace levin
