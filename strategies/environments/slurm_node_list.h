#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// More than any cluster has; a list with more is a mistake that would fill the memory.
inline constexpr size_t kMostNodes = 1'000'000;

/// Expands a SLURM node list into its hosts, in its order: "gpu-[01-03,7]x,login" names gpu-01x, gpu-02x, gpu-03x,
/// gpu-7x and login. A name may have several brackets; the last one changes fastest. Throws levin::Error,
/// also where there are more than `most_nodes`.
std::vector<std::string> expand_node_list(std::string_view list, size_t most_nodes = kMostNodes);

/// Expands the number of tasks on each node, as SLURM abbreviates it: "2(x3),1" is 2, 2, 2, 1. Throws levin::Error.
std::vector<int64_t> expand_tasks_per_node(std::string_view text);

}  // namespace levin
