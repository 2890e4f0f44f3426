#pragma once

#include <string>
#include <string_view>

namespace levin {

/// Says what a file is whose weights cannot be read here, and what helps, as "a GGUF file, as llama.cpp reads; hint:
/// ...". `start`: its first bytes, 512 or all. Empty for a file that is of none of the formats known.
std::string other_format_of(const std::string& path, std::string_view start);

}  // namespace levin
