#pragma once

#include <string>

namespace levin {

/// Returns whether all of a text is UTF-8.
bool is_utf8(const std::string& text);

}  // namespace levin
