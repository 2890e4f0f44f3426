#pragma once

#include <string_view>

namespace levin {

/// Whether the text is the pattern, in which `*` stands for any characters, dots and none included.
bool matches_wildcard(std::string_view pattern, std::string_view text);

}  // namespace levin
