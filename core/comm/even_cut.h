#pragma once

#include <cstdint>
#include <vector>

namespace levin {

/// Cuts a row of costs into so many parts of at least one each, of which there are enough; returns how many each part
/// has. The largest part costs least. Of several such cuts: the most even one (the least sum of the squares of the
/// parts' costs, then of their numbers), and then the one whose earlier parts have fewer.
std::vector<int64_t> even_cut(const std::vector<int64_t>& costs, int64_t parts);

}  // namespace levin
