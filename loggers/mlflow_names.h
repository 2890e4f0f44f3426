#pragma once

#include <string>
#include <string_view>

namespace levin {

/// Maps `name` to one that MLflow takes for metrics, parameters and tags: ASCII letters, digits, `_ - . /` and spaces,
/// at most 250 bytes, and as a path without empty, `.` or `..` parts. A name that is so already stays; in another, what
/// is not allowed becomes `_`, and `-` with 16 hexadecimal digits of the name's hash (XXH3) is added, so that two names
/// stay two.
std::string mlflow_name(std::string_view name);

/// Cuts a UTF-8 text between characters to at most `bytes`, with "..." in place of what was left out. Bytes that are no
/// UTF-8 become U+FFFD, since JSON cannot carry them.
std::string mlflow_text(std::string_view text, size_t bytes);

}  // namespace levin
