#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace levin::data {

/// A turn of a chat; roles are "system", "user" and "assistant".
struct ChatMessage {
  std::string role = {};
  std::string content = {};
};

/// A chat as a model sees it.
struct ChatText {
  std::string text = {};
  /// Bytes [begin, end) of each answer with the token that ends it: what the model says after a prompt.
  std::vector<std::pair<size_t, size_t>> answers = {};
};

/// Special tokens that templates name.
struct ChatTokens {
  std::string bos = {};
  std::string eos = {};
};

/// One way to write chats. Thread-safe.
class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  /// Returns a chat's text. `begins_answer`: with the beginning of an answer, which the model is to go on with. Throws
  /// levin::Error for roles that the format lacks, or has elsewhere.
  virtual ChatText format(std::span<const ChatMessage> chat, bool begins_answer) const = 0;
};

}  // namespace levin::data
