#pragma once

#include <string>
#include <string_view>

namespace levin {

/// A text as JSON has it, quoted. Bytes that are no UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

}  // namespace levin
