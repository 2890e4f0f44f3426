#include <levin/core/checkpoint/state_path.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

#include <algorithm>

namespace levin {
namespace {

void walk(const State& node, const std::string& pointer,
          const std::function<void(const std::string&, const State&)>& visit) {
  if (node.is_map() || node.is_list()) check_depth(pointer, "the state");
  if (node.is_map() && !node.as_map().empty()) {
    for (const auto& [key, value] : node.as_map()) walk(value, child_pointer(pointer, key), visit);
  } else if (node.is_list() && !node.as_list().empty()) {
    const auto& items = node.as_list();
    for (size_t i = 0; i < items.size(); ++i) walk(items[i], child_pointer(pointer, std::to_string(i)), visit);
  } else {
    visit(path_of(pointer), node);
  }
}

std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".enf") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::string child_pointer(const std::string& parent, std::string_view key) {
  std::string pointer = parent + "/";
  for (const char c : key) {
    if (c == '~')
      pointer += "~0";
    else if (c == '/')
      pointer += "~1";
    else
      pointer += c;
  }
  return pointer;
}

std::string path_of(const std::string& pointer) { return pointer.empty() ? pointer : pointer.substr(1); }

std::vector<std::string> keys_of(const std::string& pointer) {
  std::vector<std::string> keys;
  for (size_t i = 0; i < pointer.size(); ++i) {
    if (pointer[i] == '/')
      keys.emplace_back();
    else if (pointer[i] == '~')
      keys.back() += pointer.at(++i) == '1' ? '/' : '~';
    else
      keys.back() += pointer[i];
  }
  return keys;
}

void check_depth(const std::string& pointer, std::string_view place) {
  const auto above = static_cast<size_t>(std::count(pointer.begin(), pointer.end(), '/'));
  if (above < kMaxStateDepth) return;
  throw Error("checkpoint", fmt::format("{} has too many lists and mappings inside each other, below '{}...'; valid: "
                                        "at most {} levels",
                                        place, path_of(pointer).substr(0, 60), kMaxStateDepth));
}

void for_each_leaf(const State& tree, const std::function<void(const std::string& path, const State& leaf)>& visit) {
  walk(tree, "", visit);
}

std::string plain_text(const State& leaf) {
  if (leaf.is_null()) return "null";
  if (leaf.is_bool()) return leaf.as_bool() ? "true" : "false";
  if (leaf.is_int()) return std::to_string(leaf.as_int());
  if (leaf.is_double()) return number_text(leaf.as_double());
  if (leaf.is_string()) return fmt::format("\"{}\"", leaf.as_string());
  if (leaf.is_list()) return "[]";
  if (leaf.is_map()) return "{}";
  return "a tensor";
}

}  // namespace levin
