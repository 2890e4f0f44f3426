#pragma once

#include <cstdint>
#include <vector>

namespace levin {

/// Gives each of some tensors, of so many elements, to one of so many ranks, so that ranks have about as many elements
/// each: the largest tensors first, each to the rank that has least. No rank has more than an even share and the
/// largest tensor together.
std::vector<int64_t> balanced_owners(const std::vector<int64_t>& sizes, int64_t ranks);

}  // namespace levin
