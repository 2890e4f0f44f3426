#pragma once

#include <levin/core/base/state.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// Returns the JSON pointer (RFC 6901) of a child: `parent`, "/" and the key, in which "~" is written "~0" and "/" is
/// written "~1", so that different places have different pointers. The root's pointer is empty.
std::string child_pointer(const std::string& parent, std::string_view key);

/// Returns a pointer without its leading slash, "optimizers/0/lr", for messages and the names of tensors in files.
std::string path_of(const std::string& pointer);

/// Returns the keys of a pointer as they were before child_pointer.
std::vector<std::string> keys_of(const std::string& pointer);

/// Greatest depth of lists and mappings inside each other in a tree.
constexpr size_t kMaxStateDepth = 500;

/// Throws levin::Error when the list or mapping at `pointer` lies deeper than kMaxStateDepth; `place` names the tree in
/// the message.
void check_depth(const std::string& pointer, std::string_view place);

/// Calls `visit` for every tensor and plain value of a tree, empty lists and mappings among them, in a fixed order.
/// Throws levin::Error for a tree of more than kMaxStateDepth levels.
void for_each_leaf(const State& tree, const std::function<void(const std::string& path, const State& leaf)>& visit);

/// Returns a plain value on one line: `null`, `true`, `3`, `3.0`, `"text"`, `[]`, `{}`; "a tensor" for a tensor.
std::string plain_text(const State& leaf);

}  // namespace levin
