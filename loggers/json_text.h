#pragma once

#include <string>
#include <string_view>

namespace levin {

/// Quotes a text as JSON has it. Bytes that are no UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

}  // namespace levin
