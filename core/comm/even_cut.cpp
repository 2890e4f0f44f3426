#include <levin/core/comm/even_cut.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

namespace levin {
namespace {

/// Sums of squares outgrow 64 bits.
using Wide = __int128;

/// How many parts it takes when each is filled with as many as cost no more than `limit`, which each one does.
int64_t parts_within(const std::vector<int64_t>& costs, int64_t limit) {
  int64_t parts = 1;
  int64_t sum = 0;
  for (const int64_t cost : costs) {
    if (cost > limit - sum) {
      ++parts;
      sum = 0;
    }
    sum += cost;
  }
  return parts;
}

/// The least cost that no part of the best cut exceeds.
int64_t smallest_limit(const std::vector<int64_t>& costs, int64_t parts) {
  int64_t least = *std::max_element(costs.begin(), costs.end());
  int64_t enough = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  while (least < enough) {
    const int64_t middle = least + (enough - least) / 2;
    if (parts_within(costs, middle) <= parts)
      enough = middle;
    else
      least = middle + 1;
  }
  return enough;
}

/// The sum over parts of squared costs, then of squared numbers: the less, the more even.
using Unevenness = std::pair<Wide, Wide>;
constexpr Unevenness kImpossible = {std::numeric_limits<Wide>::max(), 0};

/// Of the cuts without a part above `limit`, the most even. Dynamic programming over (parts left, first cost left).
std::vector<int64_t> most_even_cut(const std::vector<int64_t>& costs, int64_t parts, int64_t limit) {
  const size_t count = costs.size();
  struct Best {
    Unevenness unevenness = kImpossible;
    size_t first_part_end = 0;
  };
  std::vector<std::vector<Best>> best(static_cast<size_t>(parts) + 1, std::vector<Best>(count + 1));
  best[0][count].unevenness = {0, 0};
  for (size_t left = 1; left < best.size(); ++left) {
    for (size_t begin = 0; begin + left <= count; ++begin) {
      Best& here = best[left][begin];
      int64_t sum = 0;
      for (size_t end = begin + 1; end + left - 1 <= count; ++end) {
        sum += costs[end - 1];
        if (sum > limit) break;
        const Unevenness& rest = best[left - 1][end].unevenness;
        if (rest == kImpossible) continue;
        const auto length = static_cast<Wide>(end - begin);
        const Unevenness whole = {rest.first + Wide{sum} * sum, rest.second + length * length};
        if (whole < here.unevenness) here = {whole, end};
      }
    }
  }
  std::vector<int64_t> cut;
  size_t begin = 0;
  for (size_t left = best.size() - 1; left > 0; --left) {
    const size_t end = best[left][begin].first_part_end;
    cut.push_back(static_cast<int64_t>(end - begin));
    begin = end;
  }
  return cut;
}

}  // namespace

std::vector<int64_t> even_cut(const std::vector<int64_t>& costs, int64_t parts) {
  return most_even_cut(costs, parts, smallest_limit(costs, parts));
}

}  // namespace levin
