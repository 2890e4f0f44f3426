#include <levin/core/comm/balanced_owners.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace levin {

std::vector<int64_t> balanced_owners(const std::vector<int64_t>& sizes, int64_t ranks) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int64_t> load(static_cast<size_t>(ranks));
  std::vector<int64_t> owners(sizes.size());
  for (const size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owners[i] = least - load.begin();
    *least += std::max<int64_t>(1, sizes[i]);
  }
  return owners;
}

}  // namespace levin
