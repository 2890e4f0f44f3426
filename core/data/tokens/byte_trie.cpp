#include <levin/core/data/tokens/byte_trie.h>

#include <algorithm>

namespace levin::data {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Range {
    size_t begin;
    size_t end;
    size_t depth;
    size_t node;
  };
  std::vector<Range> ranges;  // of entries that share their first `depth` bytes
  const auto add_children = [&](const Range& range) {
    for (size_t begin = range.begin; begin < range.end;) {
      const char byte = entries[begin].first[range.depth];
      size_t end = begin;
      while (end < range.end && entries[end].first[range.depth] == byte) ++end;
      ranges.push_back({begin, end, range.depth + 1, nodes_.size()});
      nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
      begin = end;
    }
  };
  size_t first = 0;
  while (first < entries.size() && entries[first].first.empty()) ++first;
  roots_.fill(-1);
  add_children({first, entries.size(), 0, 0});
  for (size_t i = 0; i < nodes_.size(); ++i) roots_[nodes_[i].byte] = static_cast<int32_t>(i);
  for (size_t done = 0; done < ranges.size(); ++done) {
    Range range = ranges[done];
    while (range.begin < range.end && entries[range.begin].first.size() == range.depth)
      nodes_[range.node].value = entries[range.begin++].second;
    const size_t before = nodes_.size();
    add_children(range);
    nodes_[range.node].first_child = static_cast<int32_t>(before);
    nodes_[range.node].children = static_cast<uint16_t>(nodes_.size() - before);
  }
}

}  // namespace levin::data
