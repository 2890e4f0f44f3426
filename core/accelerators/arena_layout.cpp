#include <levin/core/accelerators/arena_layout.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace levin {
namespace {

constexpr size_t kAlignment = 64;

size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

size_t lay_out(std::vector<ArenaBlock>& blocks) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  size_t total = 0;
  std::vector<size_t> placed;
  std::vector<std::pair<size_t, size_t>> taken;  // begin, end
  for (const size_t index : order) {
    ArenaBlock& block = blocks[index];
    taken.clear();
    for (const size_t other : placed) {
      const ArenaBlock& there = blocks[other];
      if (there.first <= block.last && block.first <= there.last)
        taken.emplace_back(there.offset, there.offset + padded(there.bytes));
    }
    std::sort(taken.begin(), taken.end());
    block.offset = 0;
    for (const auto& [begin, end] : taken) {
      if (block.offset + padded(block.bytes) <= begin) break;
      block.offset = std::max(block.offset, end);
    }
    total = std::max(total, block.offset + padded(block.bytes));
    placed.push_back(index);
  }
  return total;
}

}  // namespace levin
