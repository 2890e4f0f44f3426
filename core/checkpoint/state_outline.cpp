#include <levin/core/checkpoint/state_outline.h>

#include <ATen/ops/empty.h>

#include <cstddef>
#include <optional>

namespace levin {
namespace {

std::optional<State> outline_of_node(const State& node) {
  if (node.is_map()) {
    State map = State::map();
    for (const auto& [key, child] : node.as_map())
      if (auto outline = outline_of_node(child)) map[key] = *std::move(outline);
    return map;
  }
  if (node.is_list()) {
    State list = State::list();
    for (const State& item : node.as_list()) list.push_back(outline_of_node(item).value_or(State{}));
    return list;
  }
  if (!node.is_tensor()) return node;
  TensorLeaf leaf = node.as_leaf();
  if (leaf.placement.kind == Placement::Kind::kSharded) {
    leaf.value = at::empty({0}, leaf.value.scalar_type());
    leaf.placement.offset = 0;
    return leaf;
  }
  if (!leaf.value.defined() || leaf.value.dim() != 0) return std::nullopt;
  return node;
}

}  // namespace

State outline_of(const State& tree) { return outline_of_node(tree).value_or(State{}); }

void add_missing(State& tree, const State& outline) {
  if (tree.is_list() && outline.is_list()) {
    auto& items = tree.as_list();
    if (items.size() != outline.as_list().size()) return;
    for (size_t i = 0; i < items.size(); ++i) add_missing(items[i], outline.as_list()[i]);
  }
  if (!tree.is_map() || !outline.is_map()) return;
  for (const auto& [key, child] : outline.as_map()) {
    if (const auto [found, is_new] = tree.as_map().try_emplace(key, child); !is_new) add_missing(found->second, child);
  }
}

}  // namespace levin
