#pragma once

#include <levin/core/data/chats/chat_format.h>

#include <memory>
#include <string>
#include <string_view>

namespace levin::data {

/// Returns the format of a name, nullptr for others. `system`: the system message of chats without one, where the
/// format leaves that to the model; empty: none.
std::shared_ptr<const ChatFormat> make_chat_format(std::string_view name, const ChatTokens& tokens,
                                                   const std::string& system = "");

/// Returns a text without the white space at its ends, as Python's str.strip() has it: that of Unicode.
std::string_view stripped(std::string_view text);

}  // namespace levin::data
