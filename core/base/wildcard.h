#pragma once

#include <string_view>

namespace levin {

/// Returns whether the whole text matches the pattern, in which `*` stands for any number of characters, dots included.
bool matches_wildcard(std::string_view pattern, std::string_view text);

}  // namespace levin
