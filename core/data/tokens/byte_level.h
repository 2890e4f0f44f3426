#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace levin::data {

/// The characters that stand for bytes in a byte-level vocabulary: those that can be seen for themselves, the others
/// from U+0100 on in their order. As Radford et al., "Language models are unsupervised multitask learners", 2019.
const std::array<std::string, 256>& byte_characters();

/// Returns the bytes that the characters of a token stand for; std::nullopt: one of them stands for none.
std::optional<std::string> bytes_of_characters(std::string_view token);

}  // namespace levin::data
