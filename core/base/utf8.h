#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace levin {

/// Returns whether all of a text is UTF-8.
bool is_utf8(const std::string& text);

/// Returns a text as a message shows it: on one line, blanks in place of control characters, and "..." in place of what
/// is beyond so many bytes.
std::string shown_text(std::string_view text, size_t most_bytes);

/// Returns a text whose control characters, which a terminal would act on, are escaped (`\x1b`). Line breaks and tabs
/// stay. For texts with names that come from files.
std::string printable_text(std::string_view text);

/// Returns the text of an error: printable, each line after the first indented, so that none looks like a message of
/// its own, and the middle of more than 8 KiB left out.
std::string error_text(std::string_view text);

/// Returns "a, b and 3 more": the first names as shown_text shows them, and how many more there are.
std::string shown_names(std::span<const std::string> names, size_t most_names = 10);

}  // namespace levin
