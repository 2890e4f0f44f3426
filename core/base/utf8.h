#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace levin {

/// Returns whether all of a text is UTF-8.
bool is_utf8(const std::string& text);

/// Returns a text as a message shows it: on one line, blanks in place of control characters, and "..." in place of what
/// is beyond so many bytes.
std::string shown_text(std::string_view text, size_t most_bytes);

}  // namespace levin
