#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::data {

/// Finds which of many keys a text begins with.
class ByteTrie {
 public:
  /// Of keys and their values, which are not negative; of equal keys the last one holds. Empty keys are left out.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> entries = {});

  /// Gives the length and the value of each key that a text begins with, shortest first.
  template <class Give>
  void for_each_prefix(std::string_view text, const Give& give) const {
    if (text.empty()) return;
    int32_t node = roots_[static_cast<unsigned char>(text[0])];
    for (size_t length = 1; node >= 0; ++length) {
      const Node& at = nodes_[static_cast<size_t>(node)];
      if (at.value >= 0) give(length, at.value);
      if (length == text.size()) return;
      node = child(at, static_cast<unsigned char>(text[length]));
    }
  }

 private:
  struct Node {
    int32_t value = -1;
    int32_t first_child = 0;
    uint16_t children = 0;
    uint8_t byte = 0;
  };
  int32_t child(const Node& node, uint8_t byte) const {
    int32_t begin = node.first_child;
    int32_t end = begin + node.children;
    while (begin < end) {
      const int32_t middle = begin + (end - begin) / 2;
      const uint8_t at = nodes_[static_cast<size_t>(middle)].byte;
      if (at == byte) return middle;
      if (at < byte)
        begin = middle + 1;
      else
        end = middle;
    }
    return -1;
  }

  std::array<int32_t, 256> roots_{};
  std::vector<Node> nodes_;  ///< children of one node follow each other in the order of their bytes
};

}  // namespace levin::data
