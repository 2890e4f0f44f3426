#include <levin/core/data/sum_tree.h>

namespace levin::data {

SumTree::SumTree(int64_t size) {
  while (leaves_ < size) leaves_ *= 2;
  sums_.resize(static_cast<size_t>(2 * leaves_), 0.0);
}

void SumTree::set(int64_t index, double value) {
  auto node = static_cast<size_t>(leaves_ + index);
  sums_[node] = value;
  for (node /= 2; node > 0; node /= 2) sums_[node] = sums_[2 * node] + sums_[2 * node + 1];
}

int64_t SumTree::find(double target) const {
  size_t node = 1;
  while (node < static_cast<size_t>(leaves_)) {
    node *= 2;
    if (target < sums_[node] || sums_[node + 1] == 0) continue;
    target -= sums_[node];
    ++node;
  }
  return static_cast<int64_t>(node) - leaves_;
}

}  // namespace levin::data
